#include "trireme/format/text/documents.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>

#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/format/file.h"
#include "trireme/format/json_object.h"
#include "trireme/format/mapped_file.h"

namespace trireme::format {

namespace {

constexpr int64_t kMostDocumentBytes = int64_t{2} << 30;
constexpr int kMostFolders = 64;  // one in the other

struct stat status_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    throw Error(fmt::format("cannot open {}: {}", path, core::errno_text(errno)));
  return status;
}

void list_files(const std::string& folder, int depth, std::vector<std::string>& to) {
  if (depth > kMostFolders)
    throw Error(fmt::format("{}: more than {} folders lie in each other", folder, kMostFolders));
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  if (!open) throw Error(fmt::format("cannot open {}: {}", folder, core::errno_text(errno)));
  while (const dirent* entry = ::readdir(open.get())) {
    const std::string name = entry->d_name, path = folder + '/' + name;
    if (name.starts_with('.')) continue;
    const struct stat status = status_of(path);
    if (S_ISDIR(status.st_mode)) list_files(path, depth + 1, to);
    if (S_ISREG(status.st_mode)) to.push_back(path);
  }
}

}  // namespace

std::vector<std::string> document_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (std::string path : paths) {
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
    if (!S_ISDIR(status_of(path).st_mode)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    list_files(path, 0, found);
    if (found.empty()) throw Error(fmt::format("{}: there is no file in this folder", path));
    std::ranges::sort(found);
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

void for_each_line(std::string_view text,
                   const std::function<void(int64_t, std::string_view)>& take) {
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    ++number;
    if (line.find_first_not_of(" \t\r") != line.npos) take(number, line);
    begin = end + 1;
  }
}

bool has_lines(const std::string& path) {
  return path.ends_with(".jsonl");
}

namespace {

std::string text_of(std::string_view line, const std::string& where) {
  return JsonObject(parse_untrusted(line, where, 64), where, "its object").text("text");
}

}  // namespace

void for_each_document(const std::string& path, const std::function<void(std::string_view)>& take) {
  for_each_document(DocumentRange{path, 0, std::numeric_limits<int64_t>::max()}, take);
}

void for_each_document(const DocumentRange& range,
                       const std::function<void(std::string_view)>& take) {
  if (File::open(range.path).bytes() <= range.begin) return;  // what is empty cannot be mapped
  const MappedFile file(range.path);
  const std::string_view text(file.data(), static_cast<size_t>(file.bytes()));
  if (!has_lines(range.path)) {
    if (file.bytes() > kMostDocumentBytes)
      throw Error(fmt::format("{} has {}, more than the limit of {} for one document", range.path,
                              core::format_bytes(file.bytes()),
                              core::format_bytes(kMostDocumentBytes)));
    return take(text);
  }
  // A line that began before the range belongs to the range before.
  const auto from = static_cast<size_t>(range.begin);
  size_t at = from == 0 ? 0 : std::min(text.find('\n', from - 1), text.size() - 1) + 1;
  while (at < text.size() && static_cast<int64_t>(at) < range.end) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.find_first_not_of(" \t\r") != line.npos) {
      std::string document;
      try {
        document = text_of(line, range.path);
      } catch (const Error&) {  // once more, with its number, which takes reading all before it
        const auto before = text.begin() + static_cast<std::ptrdiff_t>(at);
        text_of(line,
                fmt::format("{}: line {}", range.path, 1 + std::count(text.begin(), before, '\n')));
      }
      if (!document.empty()) take(document);
    }
    at = end + 1;
  }
}

DocumentEncoder::DocumentEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  const auto end = tokenizer.end_of_text();
  if (!end)
    throw Error(
        "the tokenizer has no token that ends a document: add a special token <|endoftext|> to it, "
        "or name one as eos_token in its tokenizer_config.json");
  end_ = *end;
}

void DocumentEncoder::append(std::string_view document, std::vector<int32_t>& to) const {
  tokenizer_.encode(document, Around::Template, to);
  if (to.empty() || to.back() != end_) to.push_back(end_);
}

}  // namespace trireme::format
