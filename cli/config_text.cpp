#include "cli/config_text.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "trireme/config/load.h"
#include "trireme/config/validate.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/exchange/start.h"

namespace trireme::cli {

namespace {

constexpr const char* kVariable = "TRIREME_CONFIG_FD";

}  // namespace

void hand_over(const std::string& text) {
  const int file = ::memfd_create("trireme-config", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  bool ok = file >= 0;
  for (std::size_t done = 0; ok && done < text.size();) {
    const ssize_t wrote = ::write(file, text.data() + done, text.size() - done);
    ok = wrote > 0 || (wrote < 0 && errno == EINTR);
    if (wrote > 0) done += static_cast<std::size_t>(wrote);
  }
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  // The copy is inherited, and leaves alone the numbers of standard files that are closed.
  const int copy = ok && ::fcntl(file, F_ADD_SEALS, kSeals) == 0 ? ::fcntl(file, F_DUPFD, 3) : -1;
  const int reason = errno;
  if (file >= 0) ::close(file);
  if (copy < 0)
    throw Error(
        fmt::format("cannot hand the configuration to the ranks: {}", core::errno_text(reason)));
  ::setenv(kVariable, std::to_string(copy).c_str(), 1);
}

config::Config load_config(const std::string& path, std::span<const std::string> overrides) {
  const auto handed = core::env_int(kVariable);
  const std::string text =
      config::read_text(handed ? fmt::format("/proc/self/fd/{}", *handed) : path);
  config::Config config = config::parse(text, path, overrides, exchange::complete_model);
  config::refuse_unbuilt(config);
  return config;
}

}  // namespace trireme::cli
