#include <fmt/format.h>

#include <algorithm>

#include "cli/data_views.h"
#include "trireme/core/error.h"
#include "trireme/core/json.h"
#include "trireme/format/chat/chat_template.h"
#include "trireme/format/file.h"
#include "trireme/format/json_object.h"
#include "trireme/format/text/documents.h"
#include "trireme/format/tokenizer.h"

namespace trireme::cli {

namespace {

constexpr int64_t kMostFileBytes = int64_t{2} << 30;

using Take = std::function<void(int64_t number, std::string_view text)>;

/// Calls `take` with every document of the place, counted from 0; returns the number of files.
std::size_t for_each_sample(const DataPlace& place, const Take& take) {
  const auto files = format::document_files({place.path});
  int64_t count = 0;
  for (const std::string& file : files)
    format::for_each_document(file, [&](std::string_view text) { take(count++, text); });
  return files.size();
}

std::string counted(std::size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

int info_of_lines(const DataPlace& place) {
  const std::string text = format::read_file(place.path, kMostFileBytes);
  std::size_t lines = 0;
  format::for_each_line(text, [&](int64_t, std::string_view) { ++lines; });
  fmt::print("{}: jsonl, {}, {} bytes\n", place.path, counted(lines, "line"), text.size());
  return 0;
}

/// A line as JSON that a person can read; as it is, if it is not JSON.
std::string readable(std::string_view line) {
  const core::Json json = core::Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return std::string(line);
  return json.dump(2, ' ', /*ensure_ascii=*/false, core::Json::error_handler_t::replace);
}

bool has_messages(std::string_view line) {
  const core::Json json = core::Json::parse(line, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("messages");
}

/// The text cut into its tokens.
std::string cut(std::string_view text, const format::Tokenizer& tokenizer, std::size_t& count) {
  std::string pieces;
  const auto ids = tokenizer.encode(text, format::Around::Nothing);
  count += ids.size();
  for (const int32_t id : ids) {
    if (!pieces.empty()) pieces += '|';
    pieces += tokenizer.bytes_of(id);
  }
  return pieces;
}

/// A conversation as a model sees it: the text of the template, with the tokens that it learns in
/// brackets.
int show_conversation(const DataPlace& place, int64_t at, std::string_view line) {
  const auto tokenizer = format::load_tokenizer(place.tokenizer);
  const auto chosen = format::choose_chat_template("", *tokenizer);
  const std::string where = fmt::format("{}: line {}", place.path, at);
  const auto json = format::parse_untrusted(line, where, 64);
  const auto conversation = [&] {
    try {
      return chosen.chat.converse(json, *tokenizer);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", where, error.what()));
    }
  }();
  const std::string_view text = conversation.text;
  std::string shown;
  std::size_t done = 0, read = 0, learned = 0;
  for (const auto& [begin, end] : conversation.answers) {
    shown += cut(text.substr(done, begin - done), *tokenizer, read);
    shown += fmt::format("[[{}]]", cut(text.substr(begin, end - begin), *tokenizer, learned));
    done = end;
  }
  const bool ends = chosen.ends_document && json["messages"].back()["role"] == "assistant";
  const std::string rest = cut(text.substr(done), *tokenizer, ends ? learned : read);
  if (chosen.ends_document) ++(ends ? learned : read);
  shown += ends                   ? fmt::format("[[{}|end of document]]", rest)
           : chosen.ends_document ? rest + "|end of document"
                                  : rest;
  fmt::print("line {}, {} tokens by {}; {} in [[ ]] are learned\n{}{}", at, read + learned,
             tokenizer->identity(), learned, shown, shown.ends_with('\n') ? "" : "\n");
  return 0;
}

int show_line(const DataPlace& place, int64_t number) {
  const std::string text = format::read_file(place.path, kMostFileBytes);
  int64_t count = 0, place_of_it = 0;
  std::string found;
  format::for_each_line(text, [&](int64_t at, std::string_view line) {
    if (count++ != number) return;
    place_of_it = at;
    found = line;
  });
  check_number(place.path, number, count);
  if (!place.tokenizer.empty() && has_messages(found))
    return show_conversation(place, place_of_it, found);
  fmt::print("line {}\n{}\n", place_of_it, readable(found));
  return 0;
}

}  // namespace

int text_info(const DataPlace& place) {
  if (place.kind == config::DataKind::JsonLines) return info_of_lines(place);
  const auto tokenizer =
      place.tokenizer.empty() ? nullptr : format::load_tokenizer(place.tokenizer);
  std::size_t documents = 0, bytes = 0, least = SIZE_MAX, most = 0, tokens = 0;
  const std::size_t files = for_each_sample(place, [&](int64_t, std::string_view text) {
    ++documents;
    bytes += text.size();
    least = std::min(least, text.size());
    most = std::max(most, text.size());
    if (tokenizer) tokens += tokenizer->encode(text, format::Around::Nothing).size();
  });
  fmt::print("{}: text, {} in {}, {} bytes\n", place.path, counted(documents, "document"),
             counted(files, "file"), bytes);
  if (documents > 0) fmt::print("documents of {} to {} bytes\n", least, most);
  if (tokens > 0)
    fmt::print("{} tokens, {:.2f} bytes each, by {}\n", tokens,
               static_cast<double>(bytes) / static_cast<double>(tokens), tokenizer->identity());
  return 0;
}

int text_show(const DataPlace& place, int64_t number) {
  if (place.kind == config::DataKind::JsonLines) return show_line(place, number);
  constexpr std::size_t kMost = 4000;  // bytes of a long document
  int64_t count = 0;
  std::string found;
  for_each_sample(place, [&](int64_t at, std::string_view text) {
    ++count;
    if (at == number) found = text;
  });
  check_number(place.path, number, count);
  const bool is_long = found.size() > kMost;
  std::string text = found.substr(0, kMost), tokens;
  if (!place.tokenizer.empty()) {
    std::size_t count_here = 0;
    text = cut(text, *format::load_tokenizer(place.tokenizer), count_here);
    tokens = fmt::format(", {} tokens", count_here);
  }
  fmt::print("document {}, {} bytes{}{}\n{}{}", number, found.size(),
             is_long ? fmt::format(", of which {} follow", kMost) : "", tokens, text,
             !is_long && text.ends_with('\n') ? "" : "\n");
  return 0;
}

}  // namespace trireme::cli
