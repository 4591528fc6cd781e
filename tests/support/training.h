#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "support/command.h"
#include "support/scratch.h"

namespace trireme::test {

/// Long enough that only a hang gets there.
constexpr std::chrono::milliseconds kPatience{120'000};

/// A configuration that trains in a moment: a tiny GPT, 20 steps of 10 samples.
std::string tiny_config(const Scratch& folder);

/// `trireme train CONFIG run.dir=DIR OVERRIDES...` as arguments.
std::vector<std::string> train_arguments(const std::string& config, const std::string& dir,
                                         std::vector<std::string> overrides = {});

/// Runs a command to its end, for which it has kPatience.
CommandResult run_patiently(std::vector<std::string> argv);

/// The processes of ranks that run with this value of TRIREME_TEST_MARK.
std::vector<pid_t> ranks_of(const std::string& marker);

/// metrics.jsonl, a field of every step, as it was written.
std::vector<std::string> texts_of(const std::string& dir, const std::string& field);
std::vector<double> numbers_of(const std::string& dir, const std::string& field);

/// A Python that has torch: that of the checkout, else the system's.
std::string python_with_torch();

}  // namespace trireme::test
