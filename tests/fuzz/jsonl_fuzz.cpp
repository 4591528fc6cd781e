// Any bytes as a .jsonl file: refused with an Error, or the documents of its parts are those of the
// whole, and of its conversations the answers lie inside the text.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <vector>

#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/format/chat/chat_template.h"
#include "trireme/format/json_object.h"
#include "trireme/format/text/documents.h"

using namespace trireme;

namespace {

/// A file in memory with a name that says what it is.
class JsonLinesFile {
 public:
  JsonLinesFile() {
    char pattern[] = "/tmp/trireme_fuzz_XXXXXX";
    if (::mkdtemp(pattern) == nullptr) std::abort();
    folder_ = pattern;
    if (::symlink(file_.path().c_str(), path().c_str()) != 0) std::abort();
  }
  ~JsonLinesFile() {
    ::unlink(path().c_str());
    ::rmdir(folder_.c_str());
  }
  std::string path() const { return folder_ + "/lines.jsonl"; }
  void put(const uint8_t* data, size_t bytes) const { file_.put(data, bytes); }

 private:
  std::string folder_;
  fuzz::MemoryFile file_;
};

/// The documents before the line that is refused, if one is, and why.
struct Read {
  std::vector<std::string> documents;
  std::string refused;
  bool operator==(const Read&) const = default;
};

void read_range(const format::DocumentRange& range, Read& to) {
  if (!to.refused.empty()) return;
  try {
    format::for_each_document(
        range, [&](std::string_view document) { to.documents.emplace_back(document); });
  } catch (const Error& error) {
    to.refused = error.what();
    fuzz::must(!to.refused.empty());
  }
}

void read_conversations(std::string_view text) {
  static const auto tokenizer = format::load_tokenizer("bytes");
  static const format::ChatTemplate chat(format::default_chat_template(*tokenizer), "template");
  format::for_each_line(text, [&](int64_t, std::string_view line) {
    try {
      const auto talk = chat.converse(format::parse_untrusted(line, "line", 64), *tokenizer);
      size_t done = 0;
      for (const auto& answer : talk.answers) {
        fuzz::must(answer.begin >= done && answer.begin < answer.end &&
                   answer.end <= talk.text.size());
        done = answer.end;
      }
    } catch (const Error&) {
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const JsonLinesFile file;
  file.put(data, bytes);
  constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
  Read whole;
  read_range({file.path(), 0, kEnd}, whole);
  // Cut anywhere, as the threads of `data build` cut it: also inside of a line.
  for (const size_t part : {size_t{2}, size_t{3}, size_t{7}}) {
    const auto middle = static_cast<int64_t>(bytes / part);
    Read parts;
    read_range({file.path(), 0, middle}, parts);
    read_range({file.path(), middle, kEnd}, parts);
    fuzz::must(parts == whole);
  }
  read_conversations({reinterpret_cast<const char*>(data), bytes});
  return 0;
}
