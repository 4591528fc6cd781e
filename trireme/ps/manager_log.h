#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace trireme::ps {

/// Where the manager's decisions outlast it: one manager of a job at a time has it open.
class ManagerLog {
 public:
  virtual ~ManagerLog() = default;
  virtual std::string read() = 0;
  virtual void append(std::string_view record) = 0;
  /// What was appended before outlasts this process from now on.
  virtual void sync() = 0;
  /// Another log in the place of this one: after a death it is the old one or the new one.
  virtual void replace(std::string_view log) = 0;
  /// Throws CommError if another manager may have the log by now. Asked often: returns at once.
  virtual void check_held() {}
};

/// A file, locked while it is open. Waits for the lock as long as a dying manager may hold it, and
/// then throws CheckpointError, as for everything that fails.
std::unique_ptr<ManagerLog> open_log_file(const std::string& path);

}  // namespace trireme::ps
