#include "trireme/comm/nccl/shared_memory.h"

#include <unistd.h>

#include <fstream>
#include <mutex>
#include <string>

namespace trireme::comm::nccl {

namespace {

std::mutex mutex;
int num_connecting = 0;

}  // namespace

Connecting::Connecting(bool on_one_host) : on_one_host_(on_one_host) {
  const std::lock_guard lock(mutex);
  ++num_connecting;
}

Connecting::~Connecting() {
  const std::lock_guard lock(mutex);  // also while names are removed: nobody may begin meanwhile
  if (--num_connecting == 0 && on_one_host_) remove_names_of_shared_memory();
}

void remove_names_of_shared_memory() {
  const std::string prefix = "/dev/shm/nccl-";
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const auto begin = line.find(prefix);
    if (begin == std::string::npos || line.ends_with(" (deleted)")) continue;
    ::unlink(line.substr(begin).c_str());
  }
}

}  // namespace trireme::comm::nccl
