#include "trireme/ps/save_thread.h"

#include <algorithm>
#include <chrono>

#include "trireme/core/error.h"

namespace trireme::ps {

namespace {

constexpr std::chrono::seconds kTryAgain{2};

}  // namespace

SaveThread::SaveThread(std::shared_ptr<const SnapshotFiles> files, OnSaved on_saved,
                       std::function<bool(const SnapshotPart&)> is_wanted,
                       std::function<void(const std::string&)> note)
    : files_(std::move(files)),
      on_saved_(std::move(on_saved)),
      is_wanted_(std::move(is_wanted)),
      note_(std::move(note)) {}

void SaveThread::save(const SnapshotPart& part, RangeState::Image image) {
  if (!files_) return;
  const std::lock_guard lock(mutex_);
  jobs_.push_back({part, std::move(image)});
  if (!thread_.joinable())
    thread_ = std::jthread([this](const std::stop_token& stop) { loop(stop); });
  changed_.notify_all();
}

bool SaveThread::is_outdated(const SnapshotPart& part) {
  return std::ranges::any_of(jobs_, [&](const Job& other) {
    return other.part.table == part.table && other.part.range == part.range &&
           other.part.snapshot > part.snapshot;
  });
}

void SaveThread::loop(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !jobs_.empty(); })) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      if (is_outdated(job.part)) continue;
    }
    if (!is_wanted_(job.part)) continue;
    try {
      on_saved_(job.part, files_->save(job.part, job.image));
    } catch (const std::exception& error) {
      note_(fmt::format("cannot save range {} for step {}: {}; trying again", job.part.range,
                        job.part.step, error.what()));
      std::unique_lock lock(mutex_);
      jobs_.push_back(std::move(job));
      changed_.wait_for(lock, stop, kTryAgain, [] { return false; });
    }
  }
}

}  // namespace trireme::ps
