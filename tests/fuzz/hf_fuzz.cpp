// Any bytes as a Hugging Face folder: refused with a sentence, or every tensor can be read under
// our name. The input is the three texts of a folder, each after its length:
//
//     2 bytes, config.json | 2 bytes, model.safetensors.index.json (0: none) | model.safetensors
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "fuzz/fuzz.h"
#include "trireme/core/error.h"
#include "trireme/exchange/hf_weights.h"
#include "trireme/format/dtype.h"
#include "trireme/format/load.h"

using namespace trireme;

namespace {

/// A folder whose three files are links to files in memory.
class MemoryFolder {
 public:
  MemoryFolder() {
    char pattern[] = "/tmp/trireme_fuzz_XXXXXX";
    if (::mkdtemp(pattern) == nullptr) std::abort();
    path_ = pattern;
    link(config_, "config.json");
  }
  ~MemoryFolder() {
    for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"})
      ::unlink((path_ + "/" + name).c_str());
    ::rmdir(path_.c_str());
  }

  const std::string& path() const { return path_; }

  void put(std::span<const uint8_t> config, std::span<const uint8_t> index,
           std::span<const uint8_t> weights) {
    config_.put(config.data(), config.size());
    index_.put(index.data(), index.size());
    weights_.put(weights.data(), weights.size());
    link(weights_, "model.safetensors");
    if (index.empty())
      ::unlink((path_ + "/model.safetensors.index.json").c_str());
    else
      link(index_, "model.safetensors.index.json");
  }

 private:
  void link(const fuzz::MemoryFile& file, const std::string& name) const {
    (void)::symlink(file.path().c_str(), (path_ + "/" + name).c_str());  // perhaps there already
  }

  std::string path_;
  fuzz::MemoryFile config_, index_, weights_;
};

std::span<const uint8_t> take(std::span<const uint8_t>& rest) {
  if (rest.size() < 2) return {};
  const std::size_t bytes = std::min<std::size_t>(rest[0] | rest[1] << 8, rest.size() - 2);
  const auto text = rest.subspan(2, bytes);
  rest = rest.subspan(2 + bytes);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static MemoryFolder folder;
  std::span<const uint8_t> rest(data, bytes);
  const auto config = take(rest), index = take(rest);
  folder.put(config, index, rest);
  try {
    const exchange::Settings settings = exchange::read_settings(folder.path());
    exchange::HfWeights weights(folder.path(),
                                exchange::model_of(exchange::family_of(settings), settings));
    for (const exchange::MappedTensor& one : weights.tensors()) {
      const auto tensor = weights.tensor(one.name);
      fuzz::must(tensor && tensor->shape == one.shape);
      std::string content(
          static_cast<std::size_t>(*format::checked_bytes(tensor->dtype, tensor->shape)), '\0');
      weights.read(format::whole_piece(one.name, one.shape), tensor->dtype, content.data());
    }
  } catch (const Error&) {
  }
  return 0;
}
