// How fast a model writes text. bench/generate runs it beside Hugging Face's transformers.
//
//     decode CHECKPOINT TOKENS [cpu|cuda] [float32|bfloat16]
//
// For every line on stdin it writes TOKENS tokens greedily after the same prompt of 16, and prints
// one JSON object: {"bench":"generate","tokens_per_s":31.2,"tokens":[...]}.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <numeric>

#include "models/registry.h"
#include "trireme/infer/generate.h"
#include "trireme/infer/weights.h"
#include "trireme/mesh/guard.h"

namespace {

using namespace trireme;
using Clock = std::chrono::steady_clock;

int decode(const std::vector<std::string>& args) {
  const int64_t count = std::stoll(args.at(1));
  const bool gpu = args.size() > 2 && args[2] == "cuda";
  const bool half = args.size() > 3 && args[3] == "bfloat16";
  const infer::StoredModel stored = infer::find_model(args.at(0));
  config::Config config = stored.config;
  config.model.from = "";
  const Mesh mesh = mesh_of_one(gpu ? c10::Device(at::kCUDA, 0) : c10::Device(at::kCPU));
  const auto model = infer::load_model(
      *infer::open_weights(stored, config), mesh, half ? at::kBFloat16 : at::kFloat,
      [&](const Mesh& on) { return models::make_model(config, on); });
  infer::Decoder decoder(model);
  std::vector<int64_t> prompt(16);
  std::iota(prompt.begin(), prompt.end(), 100);
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<int64_t> tokens;
    const auto begin = Clock::now();
    decoder.restart();
    infer::generate(decoder, mesh.world(), prompt,
                    {.tokens = count, .sampling = {.temperature = 0}, .seq = config.model.seq},
                    [&](int64_t token) { tokens.push_back(token); });
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    fmt::print("{{\"bench\":\"generate\",\"tokens_per_s\":{:.2f},\"tokens\":[{}]}}\n",
               static_cast<double>(tokens.size()) / seconds, fmt::join(tokens, ","));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return trireme::guard([&] { return decode({argv + 1, argv + argc}); });
}
