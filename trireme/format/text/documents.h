#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/format/tokenizer.h"

namespace trireme::format {

/// The files of documents that `paths` name: a file is itself, a folder all files below it, in the
/// order of their paths, without those whose name begins with a dot. Throws Error for a path that
/// is not there, and for a folder without files.
std::vector<std::string> document_files(const std::vector<std::string>& paths);

/// Whether each line of the file is a document of its own: NAME.jsonl.
bool has_lines(const std::string& path);

/// Bytes [begin, end) of a file of documents.
struct DocumentRange {
  std::string path;
  int64_t begin = 0, end = 0;
};

/// Calls `take` with each document of a file: of NAME.jsonl, the "text" of the object on each line;
/// any other file is one document. Documents without text are passed over. Throws Error with file
/// and line.
void for_each_document(const std::string& path,
                       const std::function<void(std::string_view text)>& take);

/// The same for those whose first byte is in the range.
void for_each_document(const DocumentRange& range,
                       const std::function<void(std::string_view text)>& take);

/// Calls `take` with the number, from 1, and the text of each line that is not blank.
void for_each_line(std::string_view text,
                   const std::function<void(int64_t number, std::string_view line)>& take);

/// Documents as tokens, each followed by the token that ends a document.
class DocumentEncoder {
 public:
  /// Throws Error if the tokenizer has no token that ends a document.
  explicit DocumentEncoder(const Tokenizer& tokenizer);
  void append(std::string_view document, std::vector<int32_t>& to) const;

 private:
  const Tokenizer& tokenizer_;
  int32_t end_;
};

}  // namespace trireme::format
