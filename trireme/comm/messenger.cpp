#include "trireme/comm/messenger.h"

#include <algorithm>
#include <cstring>

#include "trireme/core/error.h"

namespace trireme::comm {

namespace {

constexpr int64_t kHeaderBytes = sizeof(MessageHeader);
constexpr int64_t kMostPerStep = 1 << 20;  // then the other peers get their turn
constexpr std::size_t kMostScratch = 64 << 20;
constexpr int64_t kMostEarly = 64 << 20;  // per peer
constexpr int64_t kFirstEarlyBytes = 1 << 20;
constexpr uint64_t kMostBytes = uint64_t{1} << 46;
constexpr uint64_t kGoodbye = ~uint64_t{0};  // the group of a peer's last message

bool matches(const MessageHeader& a, const MessageHeader& b) {
  return a.group == b.group && a.key == b.key;
}

}  // namespace

Messenger::Messenger(Streams& streams, int rank, int size, Lookup lookup,
                     std::function<void(int)> goodbye)
    : streams_(streams),
      rank_(rank),
      peers_(static_cast<std::size_t>(size)),
      lookup_(std::move(lookup)),
      goodbye_(std::move(goodbye)) {}

void Messenger::say_goodbye(int peer) noexcept {
  // In the middle of a message the goodbye would be taken for its bytes.
  const Peer& to = peers_[static_cast<std::size_t>(peer)];
  if (!to.sends.empty() || to.cut) return;
  MessageHeader header;
  header.group = kGoodbye;
  const iovec part{&header, sizeof header};
  try {
    streams_.write_some(peer, &part, 1);
  } catch (const StreamClosed&) {  // the peer left first
  }
}

void Messenger::send(Transfer& transfer) {
  peers_[static_cast<std::size_t>(transfer.peer)].sends.push_back(&transfer);
  ++active_;
}

void Messenger::receive(Transfer& transfer) {
  Peer& peer = peers_[static_cast<std::size_t>(transfer.peer)];
  ++active_;
  if (transfer.ready && take_early(peer, transfer)) return;
  peer.receives.push_back(&transfer);
}

void Messenger::make_ready(Transfer& transfer) {
  Peer& peer = peers_[static_cast<std::size_t>(transfer.peer)];
  transfer.ready = true;
  if (take_early(peer, transfer)) std::erase(peer.receives, &transfer);
}

/// Takes the message if it came before the receive was posted.
bool Messenger::take_early(Peer& peer, Transfer& transfer) {
  const auto early = std::find_if(peer.early.begin(), peer.early.end(), [&](const EarlyMessage& e) {
    return matches(e.header, transfer.header);
  });
  if (early == peer.early.end() || !agree(transfer.peer, transfer, early->header)) return false;
  if (!early->payload.empty())
    std::memcpy(transfer.data, early->payload.data(), early->payload.size());
  finish(transfer, early->header);
  peer.early_bytes -= static_cast<int64_t>(early->header.bytes);
  peer.early.erase(early);
  return true;
}

void Messenger::cancel(Transfer& transfer) noexcept {
  Peer& peer = peers_[static_cast<std::size_t>(transfer.peer)];
  if (!transfer.done) --active_;
  if (std::erase(peer.sends, &transfer) > 0 && transfer.moved > 0) peer.cut = true;
  std::erase(peer.receives, &transfer);
  if (peer.target == &transfer) peer.target = nullptr;
}

std::vector<std::byte> Messenger::take_scratch(int64_t bytes) {
  std::vector<std::byte> scratch = std::move(scratch_);
  scratch_.clear();
  if (scratch.size() < static_cast<std::size_t>(bytes))
    scratch.resize(static_cast<std::size_t>(bytes));
  return scratch;
}

void Messenger::give_scratch(std::vector<std::byte> scratch) {
  if (scratch.size() > scratch_.size() && scratch.size() <= kMostScratch)
    scratch_ = std::move(scratch);
}

bool Messenger::step() {
  bool moved = false;
  std::erase_if(questions_, [](const Transfer& question) { return question.done; });
  streams_.look();
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (!peer.sends.empty() && !peer.cut) moved |= step_sends(rank, peer);
    // A complete header may wait for its receive while the stream has no more bytes.
    const bool parked = peer.header_bytes == kHeaderBytes;
    if (rank != rank_ && !peer.garbled && (parked || streams_.readable(rank)))
      moved |= step_receives(rank, peer);
  }
  return moved;
}

/// Writes as much as the stream takes of the sends to one peer, in the order in which they were
/// posted.
bool Messenger::step_sends(int rank, Peer& peer) {
  int64_t moved = 0;
  while (!peer.sends.empty() && moved < kMostPerStep) {
    Transfer& transfer = *peer.sends.front();
    const int64_t total = kHeaderBytes + static_cast<int64_t>(transfer.header.bytes);
    iovec parts[2];
    int num_parts = 0;
    if (transfer.moved < kHeaderBytes)
      parts[num_parts++] = {reinterpret_cast<char*>(&transfer.header) + transfer.moved,
                            static_cast<std::size_t>(kHeaderBytes - transfer.moved)};
    const int64_t from = std::max<int64_t>(0, transfer.moved - kHeaderBytes);
    if (transfer.header.bytes > 0)
      parts[num_parts++] = {transfer.data + from, static_cast<std::size_t>(transfer.header.bytes) -
                                                      static_cast<std::size_t>(from)};
    const int64_t wrote = streams_.write_some(rank, parts, num_parts);
    if (wrote == 0) break;
    moved += wrote;
    transfer.moved += wrote;
    if (transfer.moved < total) continue;
    traffic.sent_bytes += static_cast<int64_t>(transfer.header.bytes);
    ++traffic.messages;
    if (is_collective(transfer.header.key))
      traffic.saw_step(static_cast<int>(transfer.header.step));
    transfer.done = true;
    --active_;
    peer.sends.pop_front();
  }
  return moved > 0;
}

/// Reads what the stream of one peer has, message by message:
///
///   header --> its receive is posted and ready ----------> payload into its memory; finished
///          \-> nobody waits for it yet -----------------> payload into `stored`, then `early`
///          \-> its receive is posted, memory in use -----> stays in the stream until a later look
bool Messenger::step_receives(int rank, Peer& peer) {
  int64_t moved = 0, finished = 0;
  while (moved < kMostPerStep && !mismatch_) {
    if (peer.header_bytes < kHeaderBytes) {
      const int64_t got =
          streams_.read_some(rank, reinterpret_cast<char*>(&peer.header) + peer.header_bytes,
                             kHeaderBytes - peer.header_bytes);
      if (got == 0) break;
      moved += got;
      peer.header_bytes += got;
      if (peer.header_bytes < kHeaderBytes) continue;
      if (peer.header.magic != MessageHeader::kMagic || peer.header.bytes > kMostBytes) {
        peer.garbled = true;  // not a message: the stream cannot be used any more
        throw StreamClosed{rank};
      }
      peer.payload_bytes = 0;
      if (peer.header.group == kGoodbye) {
        goodbye_(rank);
        peer.header_bytes = 0;
        continue;
      }
    }
    if (peer.target == nullptr && !peer.stored && !begin_payload(rank, peer)) break;
    if (mismatch_) break;
    const int64_t total = static_cast<int64_t>(peer.header.bytes);
    if (peer.payload_bytes < total) {
      const auto [data, room] = next_memory(peer);
      const int64_t got = streams_.read_some(rank, data, room);
      if (got == 0) break;
      moved += got;
      peer.payload_bytes += got;
      if (peer.payload_bytes < total) continue;
    }
    ++finished;
    traffic.received_bytes += total;
    if (is_collective(peer.header.key)) traffic.saw_step(static_cast<int>(peer.header.step));
    if (peer.target != nullptr) {
      std::erase(peer.receives, peer.target);
      finish(*peer.target, peer.header);
      peer.target = nullptr;
    } else {
      // Its receive may have been posted in the meantime.
      const MessageHeader header = peer.stored->header;
      // A question is answered now if this rank has got there, else when it does (check_early).
      const bool answered = is_question(header.key) && lookup_(header.group, number_of(header.key));
      if (!answered) peer.early.push_back(std::move(*peer.stored));
      peer.stored.reset();
      const auto posted =
          std::find_if(peer.receives.begin(), peer.receives.end(),
                       [&](const Transfer* t) { return t->ready && matches(t->header, header); });
      if (posted != peer.receives.end()) {
        Transfer& transfer = **posted;
        if (take_early(peer, transfer)) std::erase(peer.receives, &transfer);
      }
    }
    peer.header_bytes = 0;
  }
  return moved + finished > 0;
}

/// Finds where the message goes. Returns false if its memory is not free yet; it then stays in the
/// stream.
bool Messenger::begin_payload(int rank, Peer& peer) {
  const auto posted =
      std::find_if(peer.receives.begin(), peer.receives.end(),
                   [&](const Transfer* t) { return matches(t->header, peer.header); });
  if (posted != peer.receives.end()) {
    if (!agree(rank, **posted, peer.header)) return true;
    if ((*posted)->ready) {
      peer.target = *posted;
      return true;
    }
    if (!others_wait(peer)) return false;
  }
  if (is_collective(peer.header.key)) {
    const auto mine = lookup_(peer.header.group, number_of(peer.header.key));
    if (mine && mine->first != peer.header.fingerprint) {
      mismatch_ = Mismatch{rank, mine->second, peer.header.info};
      return true;
    }
  }
  // A rank that runs far ahead must wait, unless a task here waits for a message behind this one.
  if (peer.early_bytes > kMostEarly && !others_wait(peer)) return false;
  peer.early_bytes += static_cast<int64_t>(peer.header.bytes);
  peer.stored.emplace(EarlyMessage{peer.header, {}});
  return true;
}

/// Where the next bytes of the payload go. A stored message takes memory as its bytes arrive, not
/// as its header announces them.
std::pair<std::byte*, int64_t> Messenger::next_memory(Peer& peer) {
  const auto total = static_cast<int64_t>(peer.header.bytes);
  if (peer.target != nullptr)
    return {peer.target->data + peer.payload_bytes, total - peer.payload_bytes};
  auto& payload = peer.stored->payload;
  if (static_cast<int64_t>(payload.size()) <= peer.payload_bytes)
    payload.resize(static_cast<std::size_t>(
        std::min(total, std::max(kFirstEarlyBytes, 2 * peer.payload_bytes))));
  return {payload.data() + peer.payload_bytes,
          static_cast<int64_t>(payload.size()) - peer.payload_bytes};
}

/// Whether a task waits for a message of another operation behind the next one in this stream. The
/// next message must then be stored to make way.
bool Messenger::others_wait(const Peer& peer) const {
  return std::any_of(peer.receives.begin(), peer.receives.end(), [&](const Transfer* t) {
    return t->header.group != peer.header.group || !is_collective(t->header.key) ||
           number_of(t->header.key) != number_of(peer.header.key);
  });
}

void Messenger::ask(int peer, uint64_t group, uint64_t number, uint64_t fingerprint,
                    const core::OpInfo& info) {
  Transfer& question = questions_.emplace_back();
  question.peer = peer;
  question.header.step = 0;
  question.header.group = group;
  question.header.key = collective_key(number, kAskLabel);
  question.header.fingerprint = fingerprint;
  question.header.info = info;
  send(question);
}

bool Messenger::agree(int rank, const Transfer& transfer, const MessageHeader& header) {
  const core::OpInfo &mine = transfer.header.info, &theirs = header.info;
  const bool same =
      is_collective(header.key)
          ? transfer.header.fingerprint == header.fingerprint
          : mine.dtype == theirs.dtype && mine.ndim == theirs.ndim && mine.dims == theirs.dims;
  if (same && transfer.header.bytes == header.bytes && transfer.header.total == header.total)
    return true;
  mismatch_ = Mismatch{rank, mine, theirs};
  if (same) {
    mismatch_->expected_bytes = transfer.header.total;
    mismatch_->sent_bytes = header.total;
  }
  return false;
}

void Messenger::finish(Transfer& transfer, const MessageHeader& header) {
  transfer.step = header.step;
  transfer.done = true;
  --active_;
}

void Messenger::check_early(uint64_t group, uint64_t number, uint64_t fingerprint,
                            const core::OpInfo& info) {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    std::erase_if(peers_[rank].early, [&](const EarlyMessage& early) {
      const uint64_t key = early.header.key;
      if (early.header.group != group || !is_collective(key) || number_of(key) != number)
        return false;
      if (early.header.fingerprint != fingerprint)
        mismatch_ = Mismatch{static_cast<int>(rank), info, early.header.info};
      return is_question(key);
    });
  }
}

}  // namespace trireme::comm
