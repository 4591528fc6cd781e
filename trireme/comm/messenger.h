#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/comm/streams.h"
#include "trireme/comm/traffic.h"
#include "trireme/core/op_info.h"

namespace trireme::comm {

/// The header of every message in a stream.
///
///   | magic step | group | key | fingerprint | bytes | total | OpInfo | payload ...
struct MessageHeader {
  static constexpr uint32_t kMagic = 0x33525254;
  uint32_t magic = kMagic;
  uint32_t step = 1;  ///< length of the chain of transfers that ends with this one
  uint64_t group = 0;
  uint64_t key = 0;
  uint64_t fingerprint = 0;
  uint64_t bytes = 0;
  uint64_t total = 0;  ///< bytes of all messages between the two ranks that belong together
  core::OpInfo info;
};

/// The key of a transfer inside collective `number`; the label tells its transfers apart. The key
/// of a send or receive is its tag.
constexpr uint64_t collective_key(uint64_t number, int label) {
  return uint64_t{1} << 63 | number << 24 | static_cast<uint64_t>(label);
}
/// The label of a question: "this is what I called; what did you call?"
constexpr int kAskLabel = (1 << 24) - 1;
constexpr bool is_question(uint64_t key) {
  return (key >> 63) != 0 && (key & kAskLabel) == kAskLabel;
}
constexpr bool is_collective(uint64_t key) {
  return key >> 63 != 0;
}
constexpr uint64_t number_of(uint64_t key) {
  return (key & ~(uint64_t{1} << 63)) >> 24;
}

/// A send or receive in progress. The task that posts it owns it; its address identifies it.
struct Transfer {
  int peer = 0;  ///< in the world
  MessageHeader header;
  std::byte* data = nullptr;
  bool ready = true;  ///< false: a receive whose memory is still in use
  bool done = false;
  uint32_t step = 0;  ///< of the message that came
  int64_t moved = 0;  ///< of a send: bytes of header and payload that are written
};

/// Two ranks that do not mean the same operation.
struct Mismatch {
  int peer = 0;
  core::OpInfo mine, theirs;
  uint64_t expected_bytes = 0,
           sent_bytes = 0;  ///< differ if the operation is the same but its size is not
};

/// Messages over streams. They match in order per (peer, group, key). A message that comes before
/// its receive is posted is stored, so that it does not block those behind it.
class Messenger {
 public:
  /// Returns what this rank called as collective `number` of the group, if it got there. Used when
  /// a message of a collective comes that nobody waits for.
  using Lookup = std::function<std::optional<std::pair<uint64_t, core::OpInfo>>(uint64_t group,
                                                                                uint64_t number)>;
  /// `goodbye` is called with each rank that announces that it leaves.
  Messenger(Streams& streams, int rank, int size, Lookup lookup, std::function<void(int)> goodbye);

  /// Tells a peer on another host that this rank leaves, so that the end of the stream is no
  /// failure.
  void say_goodbye(int peer) noexcept;

  void send(Transfer& transfer);
  void receive(Transfer& transfer);
  void cancel(Transfer& transfer) noexcept;

  /// Tells a peer what this rank called, without data. If two ranks wait for each other in
  /// different operations, this reveals it.
  void ask(int peer, uint64_t group, uint64_t number, uint64_t fingerprint,
           const core::OpInfo& info);

  /// The memory of a receive that was posted as not ready may be written from now on.
  void make_ready(Transfer& transfer);

  /// Moves what can be moved now. Returns whether anything moved.
  bool step();

  bool idle() const { return active_ == 0; }

  /// The first two calls that were found to differ, if any.
  const std::optional<Mismatch>& mismatch() const { return mismatch_; }

  /// Checks whether the messages that came early for this collective belong to another operation.
  void check_early(uint64_t group, uint64_t number, uint64_t fingerprint, const core::OpInfo& info);

  /// Memory for a collective in flight. It is reused, because fresh pages cost more than the
  /// reduction itself.
  std::vector<std::byte> take_scratch(int64_t bytes);
  void give_scratch(std::vector<std::byte> scratch);

  Traffic traffic;

 private:
  struct EarlyMessage {
    MessageHeader header;
    std::vector<std::byte> payload;
  };
  struct Peer {
    std::deque<Transfer*> sends;
    std::vector<Transfer*> receives;
    std::deque<EarlyMessage> early;
    int64_t early_bytes = 0;
    bool cut = false;      ///< a send was cancelled in the middle: nothing can follow it
    bool garbled = false;  ///< the received bytes are no message
    // The message that is being received now.
    MessageHeader header;
    int64_t header_bytes = 0, payload_bytes = 0;
    Transfer* target = nullptr;  ///< where it goes; null: into `stored`
    std::optional<EarlyMessage> stored;
  };

  bool step_sends(int rank, Peer& peer);
  bool step_receives(int rank, Peer& peer);
  bool begin_payload(int rank, Peer& peer);
  static std::pair<std::byte*, int64_t> next_memory(Peer& peer);
  bool others_wait(const Peer& peer) const;
  bool take_early(Peer& peer, Transfer& transfer);
  void finish(Transfer& transfer, const MessageHeader& header);
  bool agree(int rank, const Transfer& transfer, const MessageHeader& header);

  Streams& streams_;
  int rank_;
  std::vector<Peer> peers_;
  Lookup lookup_;
  std::function<void(int)> goodbye_;
  std::vector<std::byte> scratch_;
  std::list<Transfer> questions_;  ///< not sent yet
  int active_ = 0;                 ///< posted and not finished
  std::optional<Mismatch> mismatch_;
};

}  // namespace trireme::comm
