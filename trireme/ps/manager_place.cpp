#include "trireme/ps/manager_place.h"

#include <unistd.h>

#include <cerrno>

#include "trireme/core/error.h"
#include "trireme/format/file.h"
#include "trireme/format/folder.h"
#include "trireme/ps/archive.h"

namespace trireme::ps {

namespace {

class FolderPlace final : public ManagerPlace {
 public:
  explicit FolderPlace(std::string folder) : folder_(std::move(folder)) {}

  std::unique_ptr<ManagerLog> open_log() override {
    return open_log_file(folder_ + "/manager.log");
  }

  void announce(const Endpoint& endpoint) override {
    format::make_folders(folder_);
    const std::string beside = path() + ".new";
    format::write_file(beside, to_bytes(endpoint));
    if (::rename(beside.c_str(), path().c_str()) != 0)
      throw CheckpointError(fmt::format("cannot rename {}: {}", beside, core::errno_text(errno)));
  }

  std::optional<Endpoint> find() override {
    constexpr int64_t kMostText = 4096;
    if (!format::is_file(path())) return {};
    try {
      return from_bytes<Endpoint>(format::read_file(path(), kMostText));
    } catch (const Error&) {  // not an address, or gone again
      return {};
    }
  }

 private:
  std::string path() const { return folder_ + "/manager.address"; }
  std::string folder_;
};

}  // namespace

std::unique_ptr<ManagerPlace> manager_in_folder(const std::string& folder) {
  return std::make_unique<FolderPlace>(folder);
}

std::unique_ptr<ManagerPlace> make_manager_place(const std::string& where, const std::string&) {
  if (where.empty())
    throw ConfigError("the place of the manager is not set: TRIREME_PS_MANAGER names its folder");
  return manager_in_folder(where);
}

}  // namespace trireme::ps
