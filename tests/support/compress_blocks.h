// Blocks of numbers for the tests of compressors.
#pragma once

#include <torch/torch.h>

#include <cstring>
#include <string>
#include <vector>

#include "trireme/comm/kernels.h"
#include "trireme/compress/factory.h"

namespace trireme::test {

using compress::BlockPlace;
using compress::Compressor;
using compress::CompressorOptions;
using compress::Kind;

constexpr int64_t kSizes[] = {0, 1, 7, 255, 256, 257, 4096, 4096 + 3, 1'000'000};
constexpr Kind kKinds[] = {Kind::Fp16, Kind::Bf16, Kind::Int8, Kind::OneBit, Kind::TopK};
inline const BlockPlace kPlace = {.seed = 0x123456789abcdef0,
                                  .stream = 0xfedcba9876543210,
                                  .step = 5'000'000'000,
                                  .first = 12'345};

inline std::vector<std::string> cpus() {
  std::vector<std::string> found;
  for (const char* name : {"base", "avx2", "avx512"})
    if (comm::cpu_supports(name)) found.emplace_back(name);
  return found;
}

/// Numbers over many orders of magnitude, with zeros, equal magnitudes and subnormal halves.
inline at::Tensor numbers(int64_t count, at::ScalarType dtype) {
  torch::manual_seed(7 + count);
  at::Tensor x =
      torch::randn({count}, at::kDouble) * torch::exp(torch::randn({count}, at::kDouble));
  if (count > 100) {
    x.slice(0, 10, 40).mul_(1e-6);
    x.slice(0, 40, 50).zero_();
    x.slice(0, 50, 60).fill_(-1.5);
    x.slice(0, 60, 70).fill_(1.5);
    x.slice(0, 70, 80).mul_(1e-40);
  }
  return x.to(dtype);
}

inline std::vector<double> values(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

inline at::Tensor decoded(const Compressor& compressor, const at::Tensor& block,
                          const BlockPlace& place = kPlace) {
  at::Tensor out = torch::full_like(block, 77);
  compressor.decode(compressor.encode(block, place), out);
  return out;
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

}  // namespace trireme::test
