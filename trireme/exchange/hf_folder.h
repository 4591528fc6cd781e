#pragma once

#include <map>
#include <string>
#include <vector>

#include "trireme/exchange/settings.h"
#include "trireme/format/safetensors.h"

namespace trireme::exchange {

/// The model's settings in a folder that `save_pretrained` of transformers wrote.
constexpr const char* kConfigName = "config.json";
/// Which file has which tensor, where there are several.
constexpr const char* kIndexOfFiles = "model.safetensors.index.json";

/// Whether the folder looks like one of Hugging Face's: it has a config.json.
bool is_hf_folder(const std::string& path);
/// Its config.json. Throws ConfigError if there is none.
Settings read_settings(const std::string& folder);

/// The tensors of such a folder:
///
///     config.json
///     model.safetensors, or    model-00001-of-00002.safetensors
///                              model-00002-of-00002.safetensors
///                              model.safetensors.index.json     which file has which tensor
///
/// Opening it reads and checks the headers of all files. Not thread-safe.
class HfFolder {
 public:
  explicit HfFolder(const std::string& path);

  const std::string& path() const { return path_; }
  /// The tensor of that name, or nullptr.
  const format::Entry* find(const std::string& name) const;
  std::vector<std::string> names() const;
  /// Bytes [begin_byte, begin_byte + bytes) of a tensor.
  void read(const std::string& name, int64_t begin_byte, int64_t bytes, void* to);

 private:
  struct Place {
    std::size_t file;
    const format::Entry* entry;
  };
  [[noreturn]] void refuse_without_files() const;
  void open_indexed(const std::string& index);
  void open_file(const std::string& name);

  std::string path_;
  std::vector<format::SafetensorsReader> files_;
  std::map<std::string, Place> places_;
};

}  // namespace trireme::exchange
