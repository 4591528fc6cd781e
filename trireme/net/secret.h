#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::net {

/// The secret that only the ranks of one job know: at least 16 bytes. It is never printed; the
/// destructor wipes its memory.
class Secret {
 public:
  /// 32 random bytes of the system, as text that fits an environment variable.
  static Secret random();
  /// Throws ConfigError if it has fewer than 16 bytes.
  static Secret from_text(std::string text);

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  /// The text for from_text(); only for passing it to a child process.
  std::string to_text() const { return text_; }

 private:
  explicit Secret(std::string text) : text_(std::move(text)) {}

  std::string text_;
};

/// The secret of a job, from the first of these that exists:
///   TRIREME_SECRET        the text itself
///   TRIREME_SECRET_FILE   a file of mode 0600 that holds it
///   otherwise             HMAC of this user's key and the job id. The key is the file
///                         $XDG_CONFIG_HOME/trireme/key (~/.config/trireme/key), mode 0600, made
///                         on first use, so ranks of one user with one home folder share it.
/// Throws ConfigError with a remedy if that one cannot be used.
Secret secret_of_job(const std::string& job);

using Digest = std::array<uint8_t, 32>;
Digest hmac_sha256(const Secret& secret, std::string_view message);

}  // namespace trireme::net
