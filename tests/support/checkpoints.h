#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "trireme/format/dtype.h"
#include "trireme/format/folder.h"
#include "trireme/format/index.h"
#include "trireme/format/overlap.h"
#include "trireme/format/safetensors.h"

namespace trireme::test {

/// Elements of the region, one by one, from the whole: the plainest way there is.
inline std::string cut(const std::string& whole, const std::vector<int64_t>& shape, int64_t each,
                       const format::BoxRange& region) {
  std::string bytes;
  for (int64_t i = region.begin; i < region.begin + region.count; ++i) {
    int64_t left = i, index = 0, stride = 1;
    for (size_t dim = shape.size(); dim-- > 0;) {
      index += (region.offset[dim] + left % region.shape[dim]) * stride;
      left /= region.shape[dim];
      stride *= shape[dim];
    }
    bytes += whole.substr(static_cast<size_t>(index * each), static_cast<size_t>(each));
  }
  return bytes;
}

/// All of it.
inline format::BoxRange whole_region(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape, 0, *format::checked_numel(shape)};
}

struct SavedTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
  std::vector<format::BoxRange> pieces;
};

/// Saves the tensors as step `step`, their pieces dealt out over `num_files` files.
inline std::string save(const std::string& folder, int64_t step,
                        const std::map<std::string, SavedTensor>& tensors, int num_files = 1,
                        const core::Json& extra = core::Json::object()) {
  format::Index index;
  index.step = step;
  index.extra = extra;
  std::vector<std::vector<format::Entry>> entries(static_cast<size_t>(num_files));
  std::vector<std::string> data(entries.size());
  size_t next = 0;
  for (const auto& [name, tensor] : tensors) {
    format::TensorInfo info{.dtype = tensor.dtype, .shape = tensor.shape};
    for (const format::BoxRange& region : tensor.pieces) {
      const size_t file = next++ % entries.size();
      const std::string key = name + "#" + std::to_string(info.pieces.size());
      entries[file].push_back({.name = key, .dtype = tensor.dtype, .shape = {region.count}});
      data[file] += cut(tensor.bytes, tensor.shape, format::dtype_bytes(tensor.dtype), region);
      info.pieces.push_back({"pieces-" + std::to_string(file) + ".safetensors", key, region.offset,
                             region.shape, region.begin, region.count});
    }
    index.tensors[name] = info;
  }
  const std::string place = format::begin(folder, step);
  for (size_t file = 0; file < entries.size(); ++file) {
    const std::string name = "pieces-" + std::to_string(file) + ".safetensors";
    format::SafetensorsWriter writer(place + "/" + name, entries[file]);
    writer.append(data[file].data(), static_cast<int64_t>(data[file].size()));
    index.files[name] = writer.finish();
  }
  format::write_file(place + "/" + format::kIndexName, format::to_text(index));
  return format::commit(folder, step);
}

}  // namespace trireme::test
