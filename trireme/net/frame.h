#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "trireme/net/socket.h"

namespace trireme::net {

/// A frame on the wire: | length: 8 bytes, little endian | that many bytes | The length is checked
/// before memory is allocated, and memory grows only as bytes arrive: a peer that announces 1 GiB
/// and sends nothing costs nothing.
void send_frame(Socket& socket, std::string_view frame, Deadline deadline);

/// Throws CommError if the peer announces more than `max_bytes`.
std::string recv_frame(Socket& socket, Deadline deadline, size_t max_bytes = 1 << 20);

/// Cuts a stream of bytes into frames, without a socket.
class FrameReader {
 public:
  static constexpr size_t kHeaderBytes = 8;

  explicit FrameReader(size_t max_bytes) : max_bytes_(max_bytes) {}

  /// How many bytes the current frame still needs, as far as is known.
  size_t wanted() const;
  /// Takes at most wanted() bytes. Throws CommError if the length is over the limit; the caller
  /// puts the peer's name before the message.
  void feed(std::string_view bytes);
  /// The frame, once it is complete.
  std::optional<std::string> take();

 private:
  size_t max_bytes_;
  std::string header_;
  std::string body_;
  size_t body_bytes_ = 0;
};

/// The header of a frame of that many bytes.
std::string frame_header(size_t bytes);

}  // namespace trireme::net
