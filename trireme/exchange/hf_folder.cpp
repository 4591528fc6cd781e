#include "trireme/exchange/hf_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <set>
#include <utility>

#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/format/json_object.h"

namespace trireme::exchange {

namespace {

constexpr const char* kOneFile = "model.safetensors";

constexpr int64_t kMostSettingsBytes = 16 * core::kMiB, kMostIndexBytes = 256 * core::kMiB;
constexpr int kMostDepth = 16;
constexpr std::size_t kMostFiles = 512;  // all are open at once

void check_is_folder(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw ConfigError(fmt::format("there is no '{}'", path));
  if (!S_ISDIR(status.st_mode)) throw ConfigError(fmt::format("'{}' is not a folder", path));
}

}  // namespace

bool is_hf_folder(const std::string& path) {
  return format::is_file(path + "/" + kConfigName);
}

Settings read_settings(const std::string& folder) {
  check_is_folder(folder);
  if (!is_hf_folder(folder))
    throw ConfigError(fmt::format(
        "'{}' is not a Hugging Face folder: it has no {}; name one that save_pretrained wrote",
        folder, kConfigName));
  const std::string path = folder + "/" + kConfigName;
  return {format::parse_untrusted(format::read_file(path, kMostSettingsBytes), path, kMostDepth),
          path};
}

HfFolder::HfFolder(const std::string& path) : path_(path) {
  if (format::is_file(path + "/" + kIndexOfFiles))
    open_indexed(path + "/" + kIndexOfFiles);
  else if (format::is_file(path + "/" + kOneFile))
    open_file(kOneFile);
  else
    refuse_without_files();
}

void HfFolder::refuse_without_files() const {
  const bool pickled = format::is_file(path_ + "/pytorch_model.bin") ||
                       format::is_file(path_ + "/pytorch_model.bin.index.json");
  throw ConfigError(fmt::format(
      "'{}' has neither {} nor {}{}", path_, kOneFile, kIndexOfFiles,
      pickled ? "; pickled weights (pytorch_model.bin) are not read: load it in transformers and "
                "save_pretrained it again"
              : ""));
}

void HfFolder::open_indexed(const std::string& index) {
  const core::Json json =
      format::parse_untrusted(format::read_file(index, kMostIndexBytes), index, kMostDepth);
  const format::JsonObject object(json, index, "the index");
  const format::JsonObject map(object.at("weight_map"), index, "'weight_map'");
  std::set<std::string> files;
  for (const auto& [name, file] : object.at("weight_map").items()) {
    if (!file.is_string()) map.fail(fmt::format("has a '{}' that is not a file's name", name));
    files.insert(file.get<std::string>());
  }
  for (const std::string& file : files)
    if (file.empty() || file.find('/') != file.npos || file.find('\0') != file.npos)
      map.fail(fmt::format("names a file '{}', which is not in this folder", file));
  if (files.size() > kMostFiles)
    map.fail(fmt::format("names {} files; at most {} can be read", files.size(), kMostFiles));
  files_.reserve(files.size());
  for (const std::string& file : files) open_file(file);
  for (const auto& [name, file] : object.at("weight_map").items())
    if (!places_.contains(name))
      throw CheckpointError(fmt::format("{}: tensor '{}' should be in {}, but is not there", index,
                                        name, file.get<std::string>()));
}

void HfFolder::open_file(const std::string& name) {
  files_.emplace_back(path_ + "/" + name);
  for (const format::Entry& entry : files_.back().entries())
    if (!places_.try_emplace(entry.name, Place{files_.size() - 1, &entry}).second)
      throw CheckpointError(fmt::format("{}: two files have tensor '{}'", path_, entry.name));
}

const format::Entry* HfFolder::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.entry;
}

std::vector<std::string> HfFolder::names() const {
  std::vector<std::string> all;
  for (const auto& [name, place] : places_) all.push_back(name);
  return all;
}

void HfFolder::read(const std::string& name, int64_t begin_byte, int64_t bytes, void* to) {
  const auto found = places_.find(name);
  core::check(found != places_.end(), "{} has no tensor '{}'", path_, name);
  files_[found->second.file].read(name, begin_byte, bytes, to);
}

}  // namespace trireme::exchange
