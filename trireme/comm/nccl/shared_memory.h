#pragma once

namespace trireme::comm::nccl {

/// NCCL shares memory through files in /dev/shm, and a rank that is killed leaves its own behind.
/// This removes the names of those that the process has mapped; the memory stays until it is
/// unmapped.
void remove_names_of_shared_memory();

/// While one exists, NCCL connects ranks in this process. When the last one goes, all files that
/// the process has mapped were opened by all who need them, and their names are removed. Between
/// hosts they stay: NCCL may open another rank's file later there, to send through its network.
class Connecting {
 public:
  explicit Connecting(bool on_one_host);
  ~Connecting();
  Connecting(const Connecting&) = delete;
  Connecting& operator=(const Connecting&) = delete;

 private:
  const bool on_one_host_;
};

}  // namespace trireme::comm::nccl
