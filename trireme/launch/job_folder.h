#pragma once

#include <string>

namespace trireme::launch {

/// Where the manager of a job with roles keeps its log and says where it listens. The job's secret
/// lies there, too, so that the same user can ask about the job.
///
///     given:  FOLDER   kept; a job before this one leaves nothing there that could be taken for
///                      this one's, and the secret goes with the job
///     empty:  a folder in /tmp that goes with the job
///     etcd://...       no folder at all
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
  /// What must go when the job is over, however it ends: a path; empty: nothing.
  std::string leftover() const;

  /// Makes the folder. `secret`: of the job; empty: everybody who may ask has been given it. Throws
  /// Error if that cannot be, or if another job uses the folder.
  void make(const std::string& secret);

 private:
  void forget_earlier_job() const;

  std::string where_;
  bool is_folder_ = true;
  bool is_temporary_ = false;
  bool is_ours_ = false;  ///< no other job uses it
};

}  // namespace trireme::launch
