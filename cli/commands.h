#pragma once

#include <span>
#include <string>
#include <vector>

namespace trireme::cli {

/// A command takes the words after its name and returns the exit code.
struct Command {
  const char* name;
  int (*run)(const std::vector<std::string>& args);
  const char* purpose;
  const char* example;
};

/// All of them, in the order in which --help lists them.
std::span<const Command> commands();

int run_command(const std::vector<std::string>& args);
int bench_command(const std::vector<std::string>& args);
int ckpt_command(const std::vector<std::string>& args);
int train_command(const std::vector<std::string>& args);
int verify_command(const std::vector<std::string>& args);
int data_command(const std::vector<std::string>& args);
int ps_command(const std::vector<std::string>& args);
int doctor_command(const std::vector<std::string>& args);
int schedule_command(const std::vector<std::string>& args);
int config_command(const std::vector<std::string>& args);
int eval_command(const std::vector<std::string>& args);
int generate_command(const std::vector<std::string>& args);
int plot_command(const std::vector<std::string>& args);
int completion_command(const std::vector<std::string>& args);

/// Runs `trireme-rank COMMAND... CONFIG [KEY=VALUE]...` on as many ranks as the configuration's
/// mesh has, or as one rank of the launcher that it runs under. The configuration is checked before
/// any rank starts. Exit codes in `answers` are results, not failures: they are passed on silently.
int train_ranks(std::vector<std::string> command, const std::vector<std::string>& args,
                const std::string& speaker, std::vector<int> answers = {});

}  // namespace trireme::cli
