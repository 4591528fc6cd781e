#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "trireme/ps/snapshot_files.h"

namespace trireme::ps {

/// Writes parts of snapshots to the disk, one after the other, while the node goes on. A part that
/// cannot be written (a full disk) is tried again until it can, or nobody wants it any more.
class SaveThread {
 public:
  using OnSaved = std::function<void(const SnapshotPart&, std::string contents)>;

  /// `is_wanted`: whether the part's snapshot may still become complete.
  SaveThread(std::shared_ptr<const SnapshotFiles> files, OnSaved on_saved,
             std::function<bool(const SnapshotPart&)> is_wanted,
             std::function<void(const std::string&)> note);

  void save(const SnapshotPart& part, RangeState::Image image);

 private:
  struct Job {
    SnapshotPart part;
    RangeState::Image image;
  };
  void loop(const std::stop_token& stop);
  bool is_outdated(const SnapshotPart& part);

  std::shared_ptr<const SnapshotFiles> files_;
  OnSaved on_saved_;
  std::function<bool(const SnapshotPart&)> is_wanted_;
  std::function<void(const std::string&)> note_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Job> jobs_;
  std::jthread thread_;  ///< begins with the first job
};

}  // namespace trireme::ps
