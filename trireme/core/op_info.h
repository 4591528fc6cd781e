#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace trireme::core {

enum class OpKind : uint8_t {
  AllReduce,
  Broadcast,
  Reduce,
  AllGather,
  ReduceScatter,
  AllToAll,
  Send,
  Recv,
  Barrier,
  Gather,
  Scatter
};
enum class DType : uint8_t { Float32, Float64, Float16, BFloat16, Int32, Int64, UInt8, Other };
enum class ReduceOp : uint8_t { Sum, Mean, Max, Min, Product };

/// How a collective moves its bytes. Auto picks OneShot for small data and Direct for the rest.
enum class Algorithm : uint8_t { Auto, OneShot, Direct, Ring, Tree };

/// Describes an operation without its data: enough to compare it with a peer's, to name it in an
/// error, to record, price and draw it. Plain memory, so that it can lie in a shared page.
struct OpInfo {
  static constexpr int kMaxDims = 8;  ///< further dims are folded into the last one

  OpKind kind = OpKind::Barrier;
  DType dtype = DType::Other;
  ReduceOp reduce = ReduceOp::Sum;
  Algorithm algorithm = Algorithm::Auto;
  uint8_t ndim = 0;
  uint8_t item_bytes = 0;  ///< of one element, for dtypes that are only moved
  int16_t root = -1;       ///< the root, or the peer of a send or receive
  int32_t tag = 0;         ///< of a send or receive; for a collective, the digest of its name
  uint32_t rows = 0;       ///< digest of the rows per rank; 0: cut evenly
  std::array<int64_t, kMaxDims> dims{};
  std::array<char, 24> name{};  ///< the caller's name for it, if any

  void set_shape(std::span<const int64_t> shape);
  void set_rows(std::span<const int64_t> counts);
  void set_name(std::string_view text);
  bool is_transfer() const { return kind == OpKind::Send || kind == OpKind::Recv; }
  int64_t numel() const;
  int64_t bytes() const { return numel() * item_bytes; }
};

std::string_view to_string(OpKind kind);
std::string_view to_string(DType dtype);
std::string_view to_string(ReduceOp reduce);
std::string_view to_string(Algorithm algorithm);

/// "all_reduce [1024] float32": enough for a person to see which of two calls is wrong.
std::string to_string(const OpInfo& info);

/// A hash that is the same on two ranks if they called the same operation: the same group and
/// number in it, kind, shape, dtype, reduction, root and tag. Takes a few nanoseconds.
uint64_t fingerprint(uint64_t group, uint64_t number, const OpInfo& info);

}  // namespace trireme::core
