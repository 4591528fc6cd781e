#include "trireme/net/frame.h"

#include <algorithm>
#include <array>

#include "trireme/core/error.h"
#include "trireme/net/bytes.h"

namespace trireme::net {

std::string frame_header(size_t bytes) {
  std::string header;
  put(header, static_cast<uint64_t>(bytes));
  return header;
}

void send_frame(Socket& socket, std::string_view frame, Deadline deadline) {
  // A small frame goes out in one write, and so in one packet.
  constexpr size_t kSmall = 16 << 10;
  std::string header = frame_header(frame.size());
  if (frame.size() <= kSmall) {
    header += frame;
    return socket.send_all(header.data(), header.size(), deadline);
  }
  socket.send_all(header.data(), header.size(), deadline);
  socket.send_all(frame.data(), frame.size(), deadline);
}

size_t FrameReader::wanted() const {
  if (header_.size() < kHeaderBytes) return kHeaderBytes - header_.size();
  return body_bytes_ - body_.size();
}

void FrameReader::feed(std::string_view bytes) {
  core::check(bytes.size() <= wanted(), "FrameReader::feed: {} bytes, but it wants {}",
              bytes.size(), wanted());
  if (header_.size() == kHeaderBytes) {
    body_ += bytes;
    return;
  }
  header_ += bytes;
  if (header_.size() < kHeaderBytes) return;
  const auto announced = ByteReader(header_).number<uint64_t>();
  if (announced > max_bytes_)
    throw CommError(
        fmt::format("announces a message of {} bytes; the limit is {}", announced, max_bytes_));
  body_bytes_ = announced;
}

std::optional<std::string> FrameReader::take() {
  if (header_.size() < kHeaderBytes || body_.size() < body_bytes_) return std::nullopt;
  header_.clear();
  body_bytes_ = 0;
  return std::exchange(body_, {});
}

std::string recv_frame(Socket& socket, Deadline deadline, size_t max_bytes) {
  FrameReader reader(max_bytes);
  std::array<char, 16 << 10> bytes;
  for (;;) {
    if (auto frame = reader.take()) return *std::move(frame);
    const size_t received =
        socket.recv_some(bytes.data(), std::min(bytes.size(), reader.wanted()), deadline);
    try {
      reader.feed({bytes.data(), received});
    } catch (const CommError& error) {
      throw CommError(fmt::format("{} {}", socket.peer().to_string(), error.what()));
    }
  }
}

}  // namespace trireme::net
