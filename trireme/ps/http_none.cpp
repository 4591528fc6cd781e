#include "trireme/core/error.h"
#include "trireme/ps/http.h"

namespace trireme::ps {

struct Http::Handle {};

bool Http::available() {
  return false;
}

Http::Http() {
  throw ConfigError(
      "this build cannot speak to etcd, because it has no libcurl: install libcurl4-openssl-dev "
      "and "
      "build again, or keep the manager's log in a folder");
}

Http::~Http() = default;

Http::Answer Http::post(const std::string&, const std::string&, std::chrono::milliseconds) {
  return {};
}

}  // namespace trireme::ps
