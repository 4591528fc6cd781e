#include "cli/ckpt_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "trireme/format/dtype.h"
#include "trireme/format/load.h"

namespace trireme::cli {

namespace {

using format::Checkpoint;
using format::TensorInfo;

constexpr int64_t kPartElems = int64_t{1} << 20;  // at most 48 MiB, with the decoded numbers

/// How the elements of a tensor differ.
struct Difference {
  int64_t elems = 0;        ///< whose bits differ
  long double largest = 0;  ///< |a - b|; infinite where only one of them is NaN
};

void add_difference(std::span<const std::byte> a, std::span<const std::byte> b,
                    const std::string& dtype, Difference& found) {
  if (std::memcmp(a.data(), b.data(), a.size()) == 0) return;
  const auto each = static_cast<size_t>(format::dtype_bytes(dtype));
  const auto values_a = format::decode(dtype, a), values_b = format::decode(dtype, b);
  for (size_t i = 0; i < values_a.size(); ++i) {
    if (std::memcmp(&a[i * each], &b[i * each], each) == 0) continue;
    ++found.elems;
    const bool nan_a = std::isnan(values_a[i]), nan_b = std::isnan(values_b[i]);
    long double apart = values_a[i] == values_b[i] ? 0 : std::fabs(values_a[i] - values_b[i]);
    if (nan_a || nan_b) apart = nan_a == nan_b ? 0 : HUGE_VALL;
    found.largest = std::max(found.largest, apart);
  }
}

/// Reads the tensor from both checkpoints, part by part, and compares the elements.
Difference compare(Checkpoint& a, Checkpoint& b, const std::string& name) {
  const TensorInfo& info = a.index().tensors.at(name);
  Piece part = format::whole_piece(name, info.shape);
  const int64_t numel = part.count, each = format::dtype_bytes(info.dtype);
  std::vector<std::byte> from_a, from_b;
  Difference found;
  for (part.begin = 0; part.begin < numel; part.begin += part.count) {
    part.count = std::min(kPartElems, numel - part.begin);
    from_a.resize(static_cast<size_t>(part.count * each));
    from_b.resize(from_a.size());
    a.read(part, info.dtype, from_a.data());
    b.read(part, info.dtype, from_b.data());
    add_difference(from_a, from_b, info.dtype, found);
  }
  return found;
}

std::string described(const TensorInfo& info) {
  return fmt::format("{} {}", info.dtype, format::format_shape(info.shape));
}

/// The tensor whose values are furthest apart.
struct LargestDifference {
  std::string tensor;
  long double apart = 0;
};

/// Prints one line about the tensor if it differs; returns whether it does.
bool print_tensor(Checkpoint& a, Checkpoint& b, const std::string& name,
                  LargestDifference& largest) {
  const auto in_a = a.index().tensors.find(name), in_b = b.index().tensors.find(name);
  if (in_a == a.index().tensors.end() || in_b == b.index().tensors.end()) {
    const bool first = in_b == b.index().tensors.end();
    fmt::print("{}: only in {} ({})\n", name, (first ? a : b).folder(),
               described((first ? in_a : in_b)->second));
    return true;
  }
  if (in_a->second.dtype != in_b->second.dtype || in_a->second.shape != in_b->second.shape) {
    fmt::print("{}: {} and {}\n", name, described(in_a->second), described(in_b->second));
    return true;
  }
  const Difference found = compare(a, b, name);
  if (found.elems == 0) return false;
  if (largest.tensor.empty() || found.largest > largest.apart) largest = {name, found.largest};
  fmt::print("{}: {} of {} elements differ, max |a-b| = {:.6g}\n", name, found.elems,
             format::whole_piece(name, in_a->second.shape).count,
             static_cast<double>(found.largest));
  return true;
}

/// Prints the keys of `extra` whose values differ. They do not count as a difference.
void print_extra(const core::Json& a, const core::Json& b) {
  std::set<std::string> keys;
  for (const core::Json* extra : {&a, &b})
    if (extra->is_object())
      for (const auto& [key, value] : extra->items()) keys.insert(key);
  for (const std::string& key : keys)
    if (a.value(key, core::Json()) != b.value(key, core::Json()))
      fmt::print("note: '{}' in the other saved values differs\n", key);
}

}  // namespace

bool print_difference(const std::string& folder_a, const std::string& folder_b) {
  Checkpoint a(folder_a), b(folder_b);
  std::set<std::string> names;
  for (const Checkpoint* each : {&a, &b})
    for (const auto& [name, info] : each->index().tensors) names.insert(name);
  size_t differing = 0;
  LargestDifference largest;
  for (const std::string& name : names) differing += print_tensor(a, b, name, largest) ? 1 : 0;
  if (a.index().extra.is_object() && b.index().extra.is_object())
    print_extra(a.index().extra, b.index().extra);
  if (differing == 0)
    fmt::print("equal: {} tensors, bit for bit\n", names.size());
  else
    fmt::print("different: {} of {} tensors{}\n", differing, names.size(),
               largest.tensor.empty()
                   ? ""
                   : fmt::format(", the largest in {} (max |a-b| = {:.6g})", largest.tensor,
                                 static_cast<double>(largest.apart)));
  return differing == 0;
}

}  // namespace trireme::cli
