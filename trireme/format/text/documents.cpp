#include "trireme/format/text/documents.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "trireme/core/error.h"
#include "trireme/format/file.h"
#include "trireme/format/json_object.h"

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

void for_each_document(const std::string& path, const std::function<void(std::string_view)>& take) {
  const std::string text = read_file(path, kMostDocumentBytes);
  if (!path.ends_with(".jsonl")) {
    if (!text.empty()) take(text);
    return;
  }
  for_each_line(text, [&](int64_t number, std::string_view line) {
    const std::string where = fmt::format("{}: line {}", path, number);
    const std::string document =
        JsonObject(parse_untrusted(line, where, 64), where, "its object").text("text");
    if (!document.empty()) take(document);
  });
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
