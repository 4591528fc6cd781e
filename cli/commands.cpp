#include "cli/commands.h"

namespace trireme::cli {

std::span<const Command> commands() {
  static constexpr Command kAll[] = {
      {"run", run_command, "start N ranks of any program and watch them",
       "trireme run -n 4 ./my_program"},
      {"train", train_command, "train a model from a configuration file",
       "trireme train configs/gpt-small.toml"},
      {"verify", verify_command, "prove that a mesh trains like one rank",
       "trireme verify configs/gpt-small.toml mesh.tensor=2"},
      {"config", config_command, "write a configuration to begin with", "trireme config new gpt"},
      {"plot", plot_command, "draw how runs went", "trireme plot runs/gpt-small"},
      {"eval", eval_command, "measure a trained model",
       "trireme eval configs/gpt-small.toml --checkpoint runs/gpt-small"},
      {"generate", generate_command, "let a trained model continue a text",
       "trireme generate runs/gpt-small --prompt \"1 2\""},
      {"bench", bench_command, "measure, one JSON object per line", "trireme bench comm --ranks 2"},
      {"data", data_command, "make and look at data sets", "trireme data make data/train.bin"},
      {"ckpt", ckpt_command, "inspect, compare and rewrite checkpoints",
       "trireme ckpt verify runs/gpt-small"},
      {"ps", ps_command, "show how servers and workers are", "trireme ps status runs/gpt-small"},
      {"schedule", schedule_command, "draw and check a pipeline schedule",
       "trireme schedule 1f1b --ranks 4 --micros 8"},
      {"doctor", doctor_command, "report on this machine, and test it", "trireme doctor"},
      {"completion", completion_command, "complete commands and keys with the Tab key",
       "trireme completion bash"},
  };
  return kAll;
}

}  // namespace trireme::cli
