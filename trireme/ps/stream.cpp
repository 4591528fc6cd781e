#include "trireme/ps/stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "trireme/core/error.h"
#include "trireme/net/bytes.h"

namespace trireme::ps {

namespace {

constexpr size_t kHeaderBytes = 16, kLentBytes = 40;
// Many short messages come with one call. Of a long one no more than this is copied twice: as much
// as it has more than kDirectBytes goes to its place at once.
constexpr size_t kStagedBytes = 8 << 10, kDirectBytes = 4 << 10;
constexpr size_t kTurnBytes = 8 << 20;  // of one peer in one turn, so that none starves others
constexpr uint64_t kMostBytes = uint64_t{4} << 30;
constexpr uint32_t kMostLent = 1 << 16;
constexpr size_t kWorthLending = 4096;

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

/// Of the process at the other end of a unix socket.
net::Fd process_of(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return {};
  return net::Fd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
}

}  // namespace

void Stream::Releases::add(uint64_t id) {
  const std::lock_guard lock(mutex);
  ids.push_back(id);
  if (ids.size() == 1 && wake) wake();
}

Stream::Stream(net::Socket socket, std::shared_ptr<Buffers> buffers, std::optional<Local> local)
    : socket_(std::move(socket)),
      buffers_(std::move(buffers)),
      local_(std::move(local)),
      staged_(kStagedBytes),
      head_(kHeaderBytes) {
  if (local_) {
    process_ = process_of(socket_.fd());
    releases_->wake = local_->wake;
    return;
  }
  const int yes = 1;
  ::setsockopt(socket_.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  // On loopback no packet is lost, and pacing (bbr) only halves the rate.
  const net::Address peer = socket_.peer();
  const std::string_view host = peer.host;
  if (host.starts_with("127.") || host == std::string_view("::1"))
    ::setsockopt(socket_.fd(), IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

/// Payloads may outlive the stream: they then wake nobody.
Stream::~Stream() {
  const std::lock_guard lock(releases_->mutex);
  releases_->wake = nullptr;
}

void Stream::queue(Kind kind, const std::vector<LentPart>& lent, const std::vector<Payload>& parts,
                   int fd) {
  uint64_t bytes = 0;
  for (const Payload& part : parts) bytes += part.size();
  std::string head;
  net::put(head, bytes);
  net::put(head, static_cast<uint32_t>(kind));
  net::put(head, static_cast<uint32_t>(lent.size()));
  for (const LentPart& part : lent)
    for (const uint64_t number : {part.position, part.segment, part.offset, part.bytes, part.id})
      net::put(head, number);
  size_t lent_bytes = 0;
  for (const LentPart& part : lent) lent_bytes += part.bytes;
  queued_bytes_ += head.size() + bytes + lent_bytes;
  out_.push_back({std::move(head), fd, lent_bytes});
  for (const Payload& part : parts) out_.push_back({part});
}

void Stream::announce(uint32_t segment) {
  if (!announced_.insert(segment).second) return;
  const Arena::Segment one = local_->arena->segment(segment);
  std::string body;
  net::put(body, uint64_t{segment});
  net::put(body, one.bytes);
  queue(Kind::Segment, {}, {std::move(body)}, one.fd);
}

void Stream::send(const Frame& frame) {
  std::vector<LentPart> lent;
  std::vector<Payload> parts;
  uint64_t position = 0;
  for (const Payload& part : frame.parts()) {
    const auto where = local_ && part.size() >= kWorthLending
                           ? local_->arena->locate(part.data(), part.size())
                           : std::nullopt;
    if (where) {
      announce(where->segment);
      const uint64_t id = next_id_++;
      exports_[id] = part;
      lent.push_back({position, where->segment, where->offset, part.size(), id});
    } else {
      parts.push_back(part);
    }
    position += part.size();
  }
  queue(Kind::Message, lent, parts);
}

void Stream::queue_releases() {
  std::vector<uint64_t> ids;
  {
    const std::lock_guard lock(releases_->mutex);
    ids.swap(releases_->ids);
  }
  if (ids.empty()) return;
  std::string body;
  for (const uint64_t id : ids) net::put(body, id);
  queue(Kind::Release, {}, {std::move(body)});
}

bool Stream::flush() {
  queue_releases();
  while (!out_.empty()) {
    constexpr size_t kMostParts = 64;
    std::array<iovec, kMostParts> parts;
    size_t count = 0, bytes = 0;
    // A descriptor goes with the first byte of its part, which therefore begins a call.
    for (const Out& one : out_) {
      if (count == kMostParts || (count > 0 && one.fd >= 0)) break;
      const size_t skip = count == 0 ? begin_ : 0;
      parts[count++] = {const_cast<char*>(one.bytes.data()) + skip, one.bytes.size() - skip};
      bytes += one.bytes.size() - skip;
    }
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    if (out_.front().fd >= 0 && begin_ == 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* passed = CMSG_FIRSTHDR(&message);
      passed->cmsg_level = SOL_SOCKET;
      passed->cmsg_type = SCM_RIGHTS;
      passed->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(passed), &out_.front().fd, sizeof(int));
    }
    const ssize_t sent = ::sendmsg(socket_.fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return false;  // full; or broken, which reading will say
    queued_bytes_ -= static_cast<size_t>(sent);
    for (size_t left = static_cast<size_t>(sent); left > 0;) {
      const size_t here = std::min(left, out_.front().bytes.size() - begin_);
      begin_ += here;
      left -= here;
      if (begin_ < out_.front().bytes.size()) break;
      queued_bytes_ -= out_.front().lent_bytes;
      out_.pop_front();
      begin_ = 0;
    }
    while (!out_.empty() && out_.front().bytes.empty()) out_.pop_front();
    if (static_cast<size_t>(sent) < bytes) return false;
  }
  return true;
}

/// Reads some bytes, and the descriptors that came with them. Returns 0 if there is nothing now.
size_t Stream::receive(char* to, size_t bytes) {
  constexpr size_t kMostFds = 16;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> control;
  iovec part{to, bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (local_) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  const ssize_t got = ::recvmsg(socket_.fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && would_block()) return 0;
  if (got <= 0) throw CommError("the stream has ended");
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
    if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(one) + i * sizeof(int), sizeof fd);
      passed_.emplace_back(fd);
    }
  }
  return static_cast<size_t>(got);
}

/// Moves staged bytes to their place. Returns whether all that is wanted is there.
bool Stream::take_staged(char* to, size_t wanted, size_t& have) {
  const size_t here = std::min(wanted - have, staged_end_ - staged_begin_);
  if (here > 0) std::memcpy(to + have, staged_.data() + staged_begin_, here);
  staged_begin_ += here;
  have += here;
  return have == wanted;
}

Stream::Left Stream::read(const std::function<void(Frame)>& on_message) {
  for (size_t turn = 0; turn < kTurnBytes;) {
    char* const to = stage_ == Stage::Inline ? static_cast<char*>(inline_.get()) : head_.data();
    const size_t wanted = stage_ == Stage::Inline ? inline_bytes_ : head_.size();
    if (take_staged(to, wanted, have_)) {
      have_ = 0;
      if (stage_ == Stage::Inline) {
        for (const LentPart& part : lent_) turn += part.bytes;  // whoever takes it reads that, too
        on_body(on_message);
      } else {
        begin_body();
      }
      continue;
    }
    const bool direct = stage_ == Stage::Inline && wanted - have_ >= kDirectBytes;
    const size_t got =
        direct ? receive(to + have_, wanted - have_) : receive(staged_.data(), staged_.size());
    if (got == 0) return Left::Nothing;
    turn += got;
    if (direct) {
      have_ += got;
    } else {
      staged_begin_ = 0;
      staged_end_ = got;
    }
  }
  // The last bytes of a message may have come, and the socket will say nothing more of it.
  const size_t wanted = stage_ == Stage::Inline ? inline_bytes_ : head_.size();
  return staged_begin_ < staged_end_ || have_ == wanted ? Left::Some : Left::Nothing;
}

/// The header is here, or the places of the lent parts: what follows?
void Stream::begin_body() {
  net::ByteReader reader({head_.data(), head_.size()});
  if (stage_ == Stage::Header) {
    inline_bytes_ = reader.number<uint64_t>();
    const auto kind = reader.number<uint32_t>();
    const auto lent = reader.number<uint32_t>();
    if (inline_bytes_ > kMostBytes || kind > static_cast<uint32_t>(Kind::Release) ||
        lent > (local_ ? kMostLent : 0))
      throw CommError(fmt::format("announces a message of kind {} with {} bytes and {} parts", kind,
                                  inline_bytes_, lent));
    kind_ = static_cast<Kind>(kind);
    lent_.resize(lent);
    stage_ = Stage::Parts;
    head_.resize(lent * kLentBytes);
    return;
  }
  for (LentPart& part : lent_)
    for (uint64_t* number : {&part.position, &part.segment, &part.offset, &part.bytes, &part.id})
      *number = reader.number<uint64_t>();
  stage_ = Stage::Inline;
  head_.resize(kHeaderBytes);
  inline_ = buffers_->take(inline_bytes_);
}

void Stream::on_body(const std::function<void(Frame)>& on_message) {
  stage_ = Stage::Header;
  if (kind_ == Kind::Message) return on_message(assemble());
  net::ByteReader reader({static_cast<const char*>(inline_.get()), inline_bytes_});
  if (kind_ == Kind::Release) {
    while (!reader.rest().empty()) exports_.erase(reader.number<uint64_t>());
    return;
  }
  const auto segment = reader.number<uint64_t>(), bytes = reader.number<uint64_t>();
  if (passed_.empty()) throw CommError("announces memory that it does not pass");
  const net::Fd fd = std::move(passed_.front());
  passed_.pop_front();
  net::check_shared_memory(fd.get(), bytes);
  segments_[segment] = {net::map_shared_memory(fd.get(), bytes, net::Access::Read), bytes};
}

Payload Stream::borrowed(const LentPart& part) {
  const auto found = segments_.find(part.segment);
  if (found == segments_.end() || part.offset > found->second.bytes ||
      part.bytes > found->second.bytes - part.offset)
    throw CommError(fmt::format("lends bytes {} to {} of segment {}, which has not so many",
                                part.offset, part.offset + part.bytes, part.segment));
  const char* bytes = reinterpret_cast<const char*>(found->second.base.get()) + part.offset;
  std::shared_ptr<const void> lease(
      bytes, [releases = releases_, id = part.id, base = found->second.base](const void*) {
        releases->add(id);
      });
  return {std::move(lease), {bytes, part.bytes}, local_->peer_lends};
}

/// The message, with lent parts where they belong.
Frame Stream::assemble() {
  const std::shared_ptr<const void> owner = std::exchange(inline_, nullptr);
  const std::string_view bytes(static_cast<const char*>(owner.get()), inline_bytes_);
  Frame frame;
  size_t used = 0;
  for (const LentPart& part : lent_) {
    if (part.position < frame.bytes() || part.position - frame.bytes() > bytes.size() - used)
      throw CommError("lends a part of a message outside of it");
    const size_t before = part.position - frame.bytes();
    frame.add({owner, bytes.substr(used, before)});
    used += before;
    frame.add(borrowed(part));
  }
  frame.add({owner, bytes.substr(used)});
  return frame;
}

Stream::Loan Stream::take_loan() {
  return {std::move(process_), std::move(exports_)};
}

}  // namespace trireme::ps
