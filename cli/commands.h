#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

/// The commands: each takes the words after its name and returns the exit code.
int run_command(const std::vector<std::string>& args);
int bench_command(const std::vector<std::string>& args);
int ckpt_command(const std::vector<std::string>& args);
int train_command(const std::vector<std::string>& args);
int verify_command(const std::vector<std::string>& args);
int data_command(const std::vector<std::string>& args);
int doctor_command(const std::vector<std::string>& args);
int schedule_command(const std::vector<std::string>& args);

/// Runs `trireme-rank COMMAND... CONFIG [KEY=VALUE]...` on as many ranks as the configuration's
/// mesh has, or as one of the launcher's; the configuration has been checked before anything is
/// started. Exit codes among `answers` are passed on without a word.
int train_ranks(std::vector<std::string> command, const std::vector<std::string>& args,
                const std::string& speaker, std::vector<int> answers = {});

}  // namespace trireme::cli
