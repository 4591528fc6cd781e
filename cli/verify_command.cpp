#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "trireme/config/choices.h"
#include "trireme/core/error.h"

namespace trireme::cli {

namespace {

/// The words of --dtype: those of precision.compute.
std::vector<std::string> dtypes() {
  std::vector<std::string> all;
  for (const auto& word : config::Words<config::Dtype>::all) all.emplace_back(word.text);
  return all;
}

constexpr const char* kVerifyPurpose =
    "Proves that a mesh trains like one rank, or names the first tensor that differs.";
constexpr const char* kVerifyExamples =
    "  trireme verify configs/gpt-small.toml mesh.tensor=2 mesh.replica=2\n"
    "  trireme verify configs/gpt-small.toml mesh.replica=2 --plant average    watch it find one\n"
    "  trireme verify configs/gpt-small.toml mesh.tensor=2 --dtype float32     what really runs\n\n"
    "Runs the mesh and, on its first rank, one rank alone, in float64 from the same weights and\n"
    "samples, and compares the inputs, the weights and buffers, the output of every layer, the "
    "loss\n"
    "and every gradient, step by step: max|a-b| / max|b| is at most 1e-10. `!` marks what exceeds\n"
    "it. In the middle the mesh is saved, rebuilt and resumed; at the end both evaluate. The "
    "report\n"
    "names the first tensor that differs, in order of computation, and the likely mistake.\n\n"
    "With --dtype float32, bfloat16 or float16 the mesh computes as in training. For every tensor\n"
    "the 2-norm of its error against one rank in float64 is at most twice that of one rank in the\n"
    "same dtype, plus four roundings of the tensor's norm.\n\n"
    "Mistakes that --plant makes on purpose: average (gradients are not averaged), reduce (one\n"
    "gradient is not reduced), order (shards in the wrong order), stale (one rank misses an "
    "update),\n"
    "data (one rank reads other samples), dropout (other masks on one replica; model.dropout is "
    "set\n"
    "to 0.1 where it is 0).\n\n"
    "Exit codes: 0 the same, 1 the run failed, 2 configuration, 3 different.\n";

}  // namespace

int verify_command(const std::vector<std::string>& args) {
  Arguments arguments("trireme verify", kVerifyPurpose);
  arguments.usage(
      "CONFIG [KEY=VALUE]... [--steps 3] [--dtype float64] [--json FILE] [--plant KIND]");
  arguments.footer(kVerifyExamples);
  int steps = 3;
  std::string json, plant, dtype = "float64";
  arguments.value("--steps", steps, "how many updates to compare");
  arguments.value("--dtype", dtype,
                  "what the mesh computes in: float64, or as it runs: float32, bfloat16, float16");
  arguments.value("--json", json, "write the report to this file, too");
  arguments.value("--plant", plant, "make a known mistake on purpose");
  arguments.words("--dtype", dtypes());
  arguments.words("--plant", {"average", "reduce", "order", "stale", "data", "dropout"});
  const auto words = arguments.parse_anywhere(args);  // the file and its overrides
  if (steps < 1) throw ConfigError(fmt::format("--steps {}: at least one step is needed", steps));
  if (!json.empty() && !std::ofstream(json, std::ios::app))
    throw ConfigError(fmt::format("--json {}: {}", json, core::errno_text(errno)));
  const auto known = dtypes();
  if (std::ranges::find(known, dtype) == known.end())
    throw ConfigError(fmt::format("--dtype {}: must be one of {}", dtype, fmt::join(known, ", ")));
  return train_ranks({"verify", std::to_string(steps), json, plant, dtype}, words, "trireme verify",
                     {kDifferent});
}

}  // namespace trireme::cli
