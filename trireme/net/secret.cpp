#include "trireme/net/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <optional>
#include <span>

#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/net/socket.h"

namespace trireme::net {

namespace {

constexpr size_t kMinBytes = 16;
constexpr size_t kMaxFileBytes = 4096;

std::string hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

/// Reads the secret in a file of mode 0600, without the line end; nothing if there is no such file.
std::optional<Secret> read_private(const std::string& path, const char* what) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd && errno == ENOENT) return std::nullopt;
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0)
    throw ConfigError(fmt::format("{}: cannot read {}: {}", what, path, core::errno_text(errno)));
  if (!S_ISREG(info.st_mode)) throw ConfigError(fmt::format("{}: {} is not a file", what, path));
  if ((info.st_mode & 077) != 0)
    throw ConfigError(
        fmt::format("{}: {} has mode {:04o}, so others can read the secret; run "
                    "`chmod 600 {}`",
                    what, path, info.st_mode & 07777, path));
  if (info.st_uid != ::geteuid() && info.st_uid != 0)
    throw ConfigError(
        fmt::format("{}: {} belongs to user {}, not to you (user {}); use a file of "
                    "your own",
                    what, path, info.st_uid, ::geteuid()));
  std::string text(kMaxFileBytes + 1, '\0');
  ssize_t bytes = 0;
  do bytes = ::read(fd.get(), text.data(), text.size());
  while (bytes < 0 && errno == EINTR);
  if (bytes < 0)
    throw ConfigError(fmt::format("{}: cannot read {}: {}", what, path, core::errno_text(errno)));
  if (static_cast<size_t>(bytes) > kMaxFileBytes)
    throw ConfigError(fmt::format("{}: {} is longer than {} bytes, too long for a secret", what,
                                  path, kMaxFileBytes));
  text.resize(static_cast<size_t>(bytes));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.size() < kMinBytes)
    throw ConfigError(
        fmt::format("{}: {} holds {} bytes, a secret has at least {}; write one with "
                    "`openssl rand -hex 32`",
                    what, path, text.size(), kMinBytes));
  return Secret::from_text(std::move(text));
}

// Strings and system calls, not std::filesystem: a libtorch with CUDA exports a broken one.
std::string config_folder() {
  if (const auto folder = core::env("XDG_CONFIG_HOME")) return *folder;
  if (const auto home = core::env("HOME")) return *home + "/.config";
  passwd entry{};
  passwd* found = nullptr;
  char buffer[4096];
  if (::getpwuid_r(::geteuid(), &entry, buffer, sizeof buffer, &found) == 0 && found != nullptr)
    return std::string(found->pw_dir) + "/.config";
  throw ConfigError(
      "there is no secret and no home folder to keep a key in; set TRIREME_SECRET (the same text "
      "for every rank), or HOME");
}

/// Creates the key file atomically: several ranks may do this at once, and all must end up with the
/// same key. link() fails for all but the first.
void create_key(const std::string& path) {
  // Makes the missing folders. If that fails, creating the key fails too and reports it.
  for (std::size_t slash = path.find('/', 1); slash != path.npos; slash = path.find('/', slash + 1))
    ::mkdir(path.substr(0, slash).c_str(), 0700);
  std::string temporary = path + ".XXXXXX";
  const Fd fd(::mkostemp(temporary.data(), O_CLOEXEC));  // mode 0600
  const std::string text = Secret::random().to_text() + "\n";
  const bool is_written =
      fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(fd.get()) == 0;
  const bool is_there =
      is_written && (::link(temporary.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const int why = errno;
  if (fd) ::unlink(temporary.c_str());
  if (!is_there)
    throw ConfigError(
        fmt::format("there is no secret, and the key {} cannot be made: {}; set "
                    "TRIREME_SECRET (the same text for every rank)",
                    path, core::errno_text(why)));
}

Secret user_key() {
  const std::string path = config_folder() + "/trireme/key";
  if (auto key = read_private(path, "the user's key")) return *key;
  create_key(path);
  if (auto key = read_private(path, "the user's key")) return *key;
  throw ConfigError(fmt::format("the user's key {} was removed while it was made", path));
}

}  // namespace

Secret Secret::random() {
  std::array<uint8_t, 32> bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1)
    throw Error("the system gives no random bytes, so no secret can be made");
  Secret secret(hex(bytes));
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return secret;
}

Secret Secret::from_text(std::string text) {
  if (text.size() < kMinBytes)
    throw ConfigError(
        fmt::format("a secret has at least {} bytes, this one has {}; make one with "
                    "`openssl rand -hex 32`",
                    kMinBytes, text.size()));
  return Secret(std::move(text));
}

Secret::~Secret() {
  OPENSSL_cleanse(text_.data(), text_.size());
}

Digest hmac_sha256(const Secret& secret, std::string_view message) {
  const std::string key = secret.to_text();
  core::check(key.size() <= INT_MAX, "hmac_sha256: a secret of {} bytes", key.size());
  Digest digest{};
  unsigned int bytes = 0;
  const auto* data = reinterpret_cast<const unsigned char*>(message.data());
  const auto* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data,
                          message.size(), digest.data(), &bytes);
  if (made == nullptr || bytes != digest.size()) throw Error("OpenSSL cannot compute HMAC-SHA-256");
  return digest;
}

Secret secret_of_job(const std::string& job) {
  if (const auto text = core::env("TRIREME_SECRET")) {
    try {
      return Secret::from_text(*text);
    } catch (const ConfigError& error) {
      throw ConfigError(fmt::format("TRIREME_SECRET: {}", error.what()));
    }
  }
  if (const auto path = core::env("TRIREME_SECRET_FILE")) {
    if (auto secret = read_private(*path, "TRIREME_SECRET_FILE")) return *secret;
    throw ConfigError(fmt::format("TRIREME_SECRET_FILE: there is no file {}", *path));
  }
  return Secret::from_text(hex(hmac_sha256(user_key(), "trireme job " + job)));
}

}  // namespace trireme::net
