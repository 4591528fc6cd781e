#include "trireme/core/op_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace trireme::core {

namespace {

/// One 64 x 64 -> 128 bit multiply, folded: three instructions, and good enough to tell calls
/// apart.
uint64_t mix(uint64_t a, uint64_t b) {
  const auto product =
      static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15) * (b ^ 0xD1B54A32D192ED03);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

void OpInfo::set_shape(std::span<const int64_t> shape) {
  ndim = static_cast<uint8_t>(std::min<std::size_t>(shape.size(), kMaxDims));
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i < kMaxDims)
      dims[i] = shape[i];
    else
      dims[kMaxDims - 1] *= shape[i];
  }
}

void OpInfo::set_rows(std::span<const int64_t> counts) {
  uint64_t hash = counts.size();
  for (int64_t count : counts) hash = mix(hash, static_cast<uint64_t>(count));
  rows = counts.empty() ? 0 : static_cast<uint32_t>(hash) | 1;
}

void OpInfo::set_name(std::string_view text) {
  name.fill('\0');
  std::copy_n(text.begin(), std::min(text.size(), name.size() - 1), name.begin());
}

int64_t OpInfo::numel() const {
  int64_t count = 1;
  for (int i = 0; i < ndim; ++i) count *= std::max<int64_t>(0, dims[static_cast<std::size_t>(i)]);
  return count;
}

std::string_view to_string(OpKind kind) {
  constexpr std::array<std::string_view, 11> kNames = {
      "all_reduce", "broadcast", "reduce",  "all_gather", "reduce_scatter", "all_to_all",
      "send",       "recv",      "barrier", "gather",     "scatter"};
  const auto i = static_cast<std::size_t>(kind);
  return i < kNames.size() ? kNames[i] : "unknown";
}

std::string_view to_string(DType dtype) {
  constexpr std::array<std::string_view, 8> kNames = {"float32", "float64", "float16", "bfloat16",
                                                      "int32",   "int64",   "uint8",   "other"};
  const auto i = static_cast<std::size_t>(dtype);
  return i < kNames.size() ? kNames[i] : "unknown";
}

std::string_view to_string(ReduceOp reduce) {
  constexpr std::array<std::string_view, 5> kNames = {"sum", "mean", "max", "min", "product"};
  const auto i = static_cast<std::size_t>(reduce);
  return i < kNames.size() ? kNames[i] : "unknown";
}

std::string_view to_string(Algorithm algorithm) {
  constexpr std::array<std::string_view, 5> kNames = {"auto", "oneshot", "direct", "ring", "tree"};
  const auto i = static_cast<std::size_t>(algorithm);
  return i < kNames.size() ? kNames[i] : "unknown";
}

std::string to_string(const OpInfo& info) {
  std::string text(to_string(info.kind));
  if (info.name[0] != '\0') text += fmt::format(" '{}'", info.name.data());
  if (info.kind == OpKind::Barrier) return text;
  std::vector<std::string> dims;  // -1: ranks hold different numbers of rows
  for (int i = 0; i < info.ndim; ++i) {
    const int64_t dim = info.dims[static_cast<std::size_t>(i)];
    dims.push_back(dim < 0 ? "*" : std::to_string(dim));
  }
  text += fmt::format(" [{}] {}", fmt::join(dims, ", "), to_string(info.dtype));
  const bool reduces = info.kind == OpKind::AllReduce || info.kind == OpKind::Reduce ||
                       info.kind == OpKind::ReduceScatter;
  if (reduces && info.reduce != ReduceOp::Sum) text += fmt::format(" {}", to_string(info.reduce));
  if (info.kind == OpKind::Send) {
    text += fmt::format(" to rank {} tag {}", info.root, info.tag);
  } else if (info.kind == OpKind::Recv) {
    text += fmt::format(" from rank {} tag {}", info.root, info.tag);
  } else if (info.root >= 0) {
    text += fmt::format(" root {}", info.root);
  }
  if (info.rows != 0) text += fmt::format(" cut by rows #{:08x}", info.rows);
  if (info.algorithm != Algorithm::Auto) text += fmt::format(" by {}", to_string(info.algorithm));
  return text;
}

uint64_t fingerprint(uint64_t group, uint64_t number, const OpInfo& info) {
  const uint64_t what = static_cast<uint64_t>(info.kind) | static_cast<uint64_t>(info.dtype) << 8 |
                        static_cast<uint64_t>(info.reduce) << 16 |
                        static_cast<uint64_t>(info.algorithm) << 24 |
                        static_cast<uint64_t>(info.ndim) << 32 |
                        static_cast<uint64_t>(static_cast<uint16_t>(info.root)) << 40 |
                        static_cast<uint64_t>(info.item_bytes) << 56;
  const uint64_t cut = info.rows | static_cast<uint64_t>(static_cast<uint32_t>(info.tag)) << 32;
  uint64_t hash = mix(mix(group, number), what) + cut;
  for (int i = 0; i < info.ndim; ++i)
    hash = mix(hash, static_cast<uint64_t>(info.dims[static_cast<std::size_t>(i)]));
  return hash;
}

}  // namespace trireme::core
