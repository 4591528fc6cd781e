#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/ps/manager_log.h"
#include "trireme/ps/view.h"

namespace trireme::ps {

/// Where nodes find the manager, and where it keeps its log. (Servers are found through the view.)
class ManagerPlace {
 public:
  virtual ~ManagerPlace() = default;
  /// Of the manager: opens the log of the job. No second manager can do that at the same time.
  virtual std::unique_ptr<ManagerLog> open_log() = 0;
  /// Of the manager: it listens there from now on.
  virtual void announce(const Endpoint& endpoint) = 0;
  /// Of the manager, when its job is over and its node has ended: nobody needs its log any more.
  virtual void forget() {}
  /// Where the manager listens, as far as is known. Returns at once; from any thread.
  virtual std::optional<Endpoint> find() = 0;
  /// Why that is not known, for people; empty: nothing is wrong. From any thread.
  virtual std::string trouble() { return {}; }
  /// The name of the job, for those who ask about it and do not know it; empty: not known here.
  virtual std::string job() { return {}; }
};

/// FOLDER/manager.log and FOLDER/manager.address, in a folder that all nodes see. The manager says
/// there, too, what the job is called. Whoever made the folder takes the files away.
std::unique_ptr<ManagerPlace> manager_in_folder(const std::string& folder,
                                                const std::string& job = "");

/// etcd://host:port[,host:port...][/prefix]: in a cluster of etcd, under PREFIX/JOB. The manager
/// holds a lease. One that has lost it can write nothing more, and CommError ends it. The keys of a
/// job that is over go; those of one that failed stay, and a job of the same name goes on from
/// them.
constexpr std::string_view kEtcdScheme = "etcd://";
constexpr std::chrono::seconds kLeaseTime{5};
std::unique_ptr<ManagerPlace> manager_in_etcd(const std::string& where, const std::string& job,
                                              std::chrono::seconds lease_time = kLeaseTime);

/// By name: a folder, or etcd://... Throws ConfigError for anything else.
std::unique_ptr<ManagerPlace> make_manager_place(const std::string& where, const std::string& job);

}  // namespace trireme::ps
