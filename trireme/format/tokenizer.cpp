#include "trireme/format/tokenizer.h"

#include "trireme/core/error.h"
#include "trireme/format/bpe/tokenizer_files.h"
#include "trireme/format/byte_tokenizer.h"
#include "trireme/format/file.h"

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

namespace {

std::unique_ptr<const Tokenizer> load_folder(const std::string& folder) {
  const std::string json = folder + "/tokenizer.json", vocab = folder + "/vocab.json",
                    merges = folder + "/merges.txt";
  if (!is_file(json) && !(is_file(vocab) && is_file(merges)))
    throw Error(fmt::format(
        "{} is not a tokenizer: it has neither tokenizer.json nor vocab.json and merges.txt",
        folder));
  BpeFacts facts = is_file(json) ? read_tokenizer_json(json) : read_vocab_and_merges(vocab, merges);
  add_folder_facts(folder, facts);
  return make_bpe_tokenizer(std::move(facts));
}

}  // namespace

std::unique_ptr<const Tokenizer> load_tokenizer(const std::string& path) {
  if (path.empty() || path == "bytes") return make_byte_tokenizer();
  if (!is_file(path)) return load_folder(path);
  BpeFacts facts = read_tokenizer_json(path);
  const size_t slash = path.rfind('/');
  add_folder_facts(slash == path.npos ? "." : path.substr(0, slash), facts);
  return make_bpe_tokenizer(std::move(facts));
}

}  // namespace trireme::format
