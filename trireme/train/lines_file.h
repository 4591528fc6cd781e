#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

namespace trireme::train {

/// A file of one JSON object per line, each with a "step". Each line is flushed with its step.
class LinesFile {
 public:
  /// Keeps the lines up to `step` as they are and drops those after it, and a last one that a crash
  /// cut short.
  LinesFile(std::string path, int64_t step);
  void add(const std::string& line);

 private:
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace trireme::train
