#pragma once

#include <chrono>
#include <set>
#include <string>
#include <vector>

namespace trireme::test {

/// What a job has left behind on this machine. All that is started between the making of this and
/// its end inherits a mark in the environment, so that other people's jobs do not count.
///
///   processes   with the mark, or children of this one, dead ones included
///   sockets     listening tcp and unix sockets that such a process holds; and abstract names
///               "@trireme-..." that are new and that no living process of somebody else holds
///   /dev/shm    files that are new and that no living process of somebody else uses
class Leftovers {
 public:
  Leftovers();
  ~Leftovers();
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  const std::string& mark() const { return mark_; }

  /// One line per thing that is there now.
  std::vector<std::string> now() const;

  /// Fails the current test, with the list, unless it is empty within the time.
  void expect_none(std::chrono::milliseconds deadline = std::chrono::milliseconds(2000)) const;

 private:
  std::string mark_;
  std::string outer_mark_;  ///< of somebody who made one before us, in this process
  std::set<std::string> names_before_;
  std::set<std::string> files_before_;
};

/// The ports and abstract names that a process listens on.
std::vector<int> tcp_listeners_of(int pid);
std::vector<std::string> abstract_names_of(int pid);

}  // namespace trireme::test
