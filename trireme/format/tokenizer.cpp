#include "trireme/format/tokenizer.h"

#include "trireme/core/error.h"
#include "trireme/format/byte_tokenizer.h"

namespace trireme::format {

std::vector<int32_t> Tokenizer::encode(std::string_view text, Around around) const {
  std::vector<int32_t> ids;
  encode(text, around, ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) text += bytes_of(id);
  return text;
}

std::unique_ptr<const Tokenizer> load_tokenizer(const std::string& path) {
  if (path.empty() || path == "bytes") return make_byte_tokenizer();
  throw Error(fmt::format("{}: only bytes are built yet", path));
}

}  // namespace trireme::format
