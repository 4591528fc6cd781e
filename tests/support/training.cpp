#include "support/training.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "trireme/core/json.h"

namespace trireme::test {

namespace fs = std::filesystem;

std::string tiny_config(const Scratch& folder) {
  const std::string file = folder / "tiny.toml";
  std::ofstream(file) << "run.steps = 20\n"
                         "model.layers = 2\nmodel.hidden = 32\nmodel.heads = 2\n"
                         "model.seq = 16\nmodel.vocab = 64\n"
                         "data.samples = 64\nbatch.global = 10\nbatch.micro = 3\n"
                         "optim.warmup = 3\nrun.threads = 1\nmesh.replica = 2\n"
                         "checkpoint.every = 4\n";
  return file;
}

std::vector<std::string> train_arguments(const std::string& config, const std::string& dir,
                                         std::vector<std::string> overrides) {
  std::vector<std::string> all{TRIREME_BINARY_DIR "/bin/trireme", "train", config,
                               "run.dir=" + dir};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return all;
}

CommandResult run_patiently(std::vector<std::string> argv) {
  return run_command(std::move(argv), {.deadline = kPatience});
}

std::vector<pid_t> ranks_of(const std::string& marker) {
  std::vector<pid_t> ranks;
  for (const pid_t pid : processes_with("TRIREME_TEST_MARK", marker)) {
    std::ifstream comm("/proc/" + std::to_string(pid) + "/comm");
    std::string name;
    std::getline(comm, name);
    if (name == "trireme-rank") ranks.push_back(pid);
  }
  return ranks;
}

std::vector<std::string> texts_of(const std::string& dir, const std::string& field) {
  std::vector<std::string> found;
  std::ifstream file(dir + "/metrics.jsonl");
  int64_t step = 0;
  for (std::string line; std::getline(file, line);) {
    const auto json = core::Json::parse(line, nullptr, false);
    EXPECT_TRUE(json.is_object()) << line;
    EXPECT_EQ(json["step"].get<int64_t>(), ++step) << "every step once, in order";
    // The text itself, so that the last bit shows.
    const auto begin = line.find("\"" + field + "\":");
    if (begin == line.npos) continue;
    const auto value = begin + field.size() + 3;
    found.push_back(line.substr(value, line.find_first_of(",}", value) - value));
  }
  return found;
}

std::vector<double> numbers_of(const std::string& dir, const std::string& field) {
  std::vector<double> numbers;
  for (const std::string& text : texts_of(dir, field)) numbers.push_back(std::stod(text));
  return numbers;
}

std::string python_with_torch() {
  const std::string own = TRIREME_SOURCE_DIR "/.venv/bin/python3";
  return fs::exists(own) ? own : "python3";
}

}  // namespace trireme::test
