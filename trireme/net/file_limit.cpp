#include "trireme/net/file_limit.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "trireme/core/error.h"

namespace trireme::net {

void raise_file_limit(int wanted, int least, const std::string& who) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_cur >= static_cast<rlim_t>(wanted)) return;
  limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(wanted));
  ::setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= static_cast<rlim_t>(least)) return;
  throw CommError(
      fmt::format("{} needs {} open files, but the hard limit is {}; raise it (ulimit -Hn, "
                  "/etc/security/limits.conf)",
                  who, least, limit.rlim_max));
}

}  // namespace trireme::net
