#include "trireme/ps/manager_place.h"

#include <unistd.h>

#include <cerrno>

#include "trireme/core/error.h"
#include "trireme/format/file.h"
#include "trireme/format/folder.h"
#include "trireme/ps/archive.h"

namespace trireme::ps {

namespace {

/// What manager.address holds.
struct Announcement {
  Endpoint endpoint = {};
  std::string job = {};
  template <class Archive>
  void fields(Archive& archive) {
    archive(endpoint, job);
  }
};

class FolderPlace final : public ManagerPlace {
 public:
  FolderPlace(std::string folder, std::string job)
      : folder_(std::move(folder)), job_(std::move(job)) {}

  std::unique_ptr<ManagerLog> open_log() override {
    return open_log_file(folder_ + "/manager.log");
  }

  void announce(const Endpoint& endpoint) override {
    format::make_folders(folder_);
    const std::string beside = path() + ".new";
    format::write_file(beside, to_bytes(Announcement{endpoint, job_}));
    if (::rename(beside.c_str(), path().c_str()) != 0)
      throw CheckpointError(fmt::format("cannot rename {}: {}", beside, core::errno_text(errno)));
  }

  std::optional<Endpoint> find() override {
    auto found = read();
    return found ? std::optional(std::move(found->endpoint)) : std::nullopt;
  }

  std::string job() override {
    const auto found = read();
    return found ? found->job : "";
  }

 private:
  std::optional<Announcement> read() const {
    constexpr int64_t kMostText = 4096;
    if (!format::is_file(path())) return {};
    try {
      return from_bytes<Announcement>(format::read_file(path(), kMostText));
    } catch (const Error&) {  // not an address, or gone again
      return {};
    }
  }

  std::string path() const { return folder_ + "/manager.address"; }
  std::string folder_, job_;
};

}  // namespace

std::unique_ptr<ManagerPlace> manager_in_folder(const std::string& folder, const std::string& job) {
  return std::make_unique<FolderPlace>(folder, job);
}

std::unique_ptr<ManagerPlace> make_manager_place(const std::string& where, const std::string& job) {
  if (where.empty())
    throw ConfigError(
        "the place of the manager is not set: TRIREME_PS_MANAGER names its folder, or is "
        "etcd://host:port");
  if (where.starts_with(kEtcdScheme)) return manager_in_etcd(where, job);
  if (where.find("://") != where.npos)
    throw ConfigError(
        fmt::format("no manager can be at '{}': give a folder, or etcd://host:port", where));
  return manager_in_folder(where, job);
}

}  // namespace trireme::ps
