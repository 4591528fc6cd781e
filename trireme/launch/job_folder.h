#pragma once

#include <functional>
#include <string>

#include "trireme/net/socket.h"

namespace trireme::launch {

/// Where the manager of a job with roles keeps its log and says where it listens. The job's secret
/// lies there, too, so that the same user can ask about the job.
///
///     given:  FOLDER   it is made where it is missing
///     empty:  a folder in /tmp
///     etcd://...       no folder at all
///
/// All of it goes with the job, however that ends: a later job must not take it for its own. What
/// others keep in a folder that was given stays, and then the folder does, too.
class JobFolder {
 public:
  /// Touches nothing yet.
  explicit JobFolder(const std::string& where);
  ~JobFolder();
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;

  /// For the processes of the job.
  const std::string& where() const { return where_; }
  bool is_temporary() const { return is_temporary_; }
  /// Removes what the job has on the disk, if this launcher cannot any more, and unless another job
  /// has the folder by then. Null: there is nothing.
  std::function<void()> remover() const;

  /// Makes the folder. `secret`: of the job; empty: everybody who may ask has been given it. Throws
  /// Error if that cannot be, or if another job uses the folder.
  void make(const std::string& secret);

 private:
  net::Fd make_and_lock() const;
  void forget_earlier_job() const;

  std::string where_;
  bool is_folder_ = true;
  bool is_temporary_ = false;
  net::Fd lock_;  ///< while this job has the folder
};

}  // namespace trireme::launch
