#pragma once

#include <string>
#include <vector>

namespace trireme::cli {

// The commands of `trireme data` that work on text. They take the words after their name.
int data_build_command(const std::vector<std::string>& args);
int train_tokenizer_command(const std::vector<std::string>& args);

}  // namespace trireme::cli
