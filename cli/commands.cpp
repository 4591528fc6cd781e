#include "cli/commands.h"

namespace trireme::cli {

std::span<const Command> commands() {
  static constexpr Command kAll[] = {
      {"run", run_command, "start N ranks of any program and watch them",
       "trireme run -n 4 ./my_program"},
      {"train", train_command, "train a model, as a file says",
       "trireme train configs/gpt-small.toml"},
      {"verify", verify_command, "prove that a mesh trains as one rank does",
       "trireme verify configs/gpt-small.toml mesh.tensor=2"},
      {"bench", bench_command, "measure, one JSON object per line", "trireme bench comm --ranks 2"},
      {"data", data_command, "make and look at files of tokens",
       "trireme data make data/train.bin"},
      {"ckpt", ckpt_command, "look into checkpoints, compare, rewrite",
       "trireme ckpt verify runs/gpt-small"},
      {"schedule", schedule_command, "draw and check a pipeline schedule",
       "trireme schedule 1f1b --ranks 4 --micros 8"},
      {"doctor", doctor_command, "say what this machine has, and try it", "trireme doctor"},
      {"completion", completion_command, "let the Tab key finish commands and keys",
       "trireme completion bash"},
  };
  return kAll;
}

}  // namespace trireme::cli
