#include "trireme/train/memory.h"

#include <cstdio>
#include <fstream>
#include <string>

namespace trireme::train {

int64_t pss_mib() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);) {
    long long kib = 0;
    if (std::sscanf(line.c_str(), "Pss: %lld kB", &kib) == 1) return kib >> 10;
  }
  return 0;
}

}  // namespace trireme::train
