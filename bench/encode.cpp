// How long it takes to encode and decode 64 MiB of float32 on one core, beside a memcpy of the same
// 64 MiB. The rounds of all compressors and of memcpy are interleaved; times are medians. Freed
// memory is kept, as `trireme train` does it, so that no round pays for new pages.
//
//     build/bin/encode [ROUNDS [CPU [MIB]]]        CPU: base, avx2 or avx512
#include <fmt/format.h>
#include <malloc.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "trireme/compress/factory.h"

using namespace trireme;

namespace {

double ms_of(const std::function<void()>& body) {
  const auto began = std::chrono::steady_clock::now();
  body();
  const auto took = std::chrono::steady_clock::now() - began;
  return std::chrono::duration<double, std::milli>(took).count();
}

double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

struct Case {
  std::string name;
  compress::CompressorOptions options;
  double largest_error;  ///< of an element, in units of the largest magnitude
};

struct Times {
  std::vector<double> encode, feedback, decode;
};

struct Data {
  at::Tensor block, residual, decoded;
  double largest;
};

/// One round; whether what was decoded is near enough.
bool measure(const Case& one, const Data& data, int64_t round, Times& times) {
  const auto compressor = compress::make_compressor(one.options);
  const compress::BlockPlace place{.seed = 1, .stream = 2, .step = round};
  at::Tensor bytes;
  times.encode.push_back(ms_of([&] { bytes = compressor->encode(data.block, place); }));
  times.decode.push_back(ms_of([&] { compressor->decode(bytes, data.decoded); }));
  const double error = data.decoded.sub(data.block).abs().max().item<double>() / data.largest;
  data.residual.zero_();
  times.feedback.push_back(
      ms_of([&] { compressor->encode_with_feedback(data.block, data.residual, place); }));
  const double left = data.residual.abs().max().item<double>() / data.largest;
  return error <= one.largest_error && left <= one.largest_error;
}

std::vector<Case> all_cases(const std::string& cpu) {
  using compress::Kind;
  return {{"fp16", {.kind = Kind::Fp16, .cpu = cpu}, 0x1p-11},
          {"bf16", {.kind = Kind::Bf16, .cpu = cpu}, 0x1p-8},
          {"int8", {.kind = Kind::Int8, .cpu = cpu}, 1.001 / 127},
          {"onebit", {.kind = Kind::OneBit, .cpu = cpu}, 1},
          {"topk 1%", {.kind = Kind::TopK, .ratio = 0.01, .cpu = cpu}, 0.6}};
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 15, 1);
  const std::string cpu = argc > 2 ? argv[2] : "";
  const int64_t mib = argc > 3 ? std::atoi(argv[3]) : 64;
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  at::set_num_threads(1);
  const at::Tensor block = at::randn({mib << 18});
  const Data data{block, at::zeros_like(block), at::empty_like(block),
                  block.abs().max().item<double>()};
  const auto cases = all_cases(cpu);
  std::vector<Times> times(cases.size());
  std::vector<double> copies;
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      copies.push_back(
          ms_of([&] { std::memcpy(data.decoded.data_ptr(), block.data_ptr(), block.nbytes()); }));
      if (!measure(cases[i], data, round, times[i])) return 1;
    }
  }
  const double copy = median(copies);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const double encode = median(times[i].encode), feedback = median(times[i].feedback),
                 decode = median(times[i].decode);
    fmt::print(
        "{{\"bench\":\"encode\",\"name\":\"{}\",\"cpu\":\"{}\",\"mib\":{},\"memcpy_ms\":{:.2f},"
        "\"encode_ms\":{:.2f},\"feedback_ms\":{:.2f},\"decode_ms\":{:.2f},\"ratio\":{:.2f},"
        "\"ratio_feedback\":{:.2f}}}\n",
        cases[i].name, cpu, mib, copy, encode, feedback, decode, (encode + decode) / copy,
        (feedback + decode) / copy);
  }
}
