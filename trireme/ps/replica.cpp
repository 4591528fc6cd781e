#include "trireme/ps/replica.h"

#include <algorithm>
#include <utility>

#include "trireme/core/error.h"

namespace trireme::ps {

namespace {

/// Bytes [begin, begin + count) of a frame, copied only where they lie in several parts.
Payload slice_of(const Frame& frame, uint64_t begin, uint64_t count) {
  std::string joined;
  for (const Payload& part : frame.parts()) {
    if (begin >= part.size()) {
      begin -= part.size();
      continue;
    }
    const uint64_t here = std::min<uint64_t>(count, part.size() - begin);
    if (joined.empty() && here == count) return part.slice(begin, here);
    joined += part.view().substr(begin, here);
    count -= here;
    begin = 0;
    if (count == 0) break;
  }
  return joined;
}

}  // namespace

void Replica::install(const Assignment& assignment) {
  if (assignment == assignment_) return;
  assignment_ = assignment;
  const auto at = std::ranges::find(assignment.chain, host_.self());
  place_in_chain_ = static_cast<size_t>(at - assignment.chain.begin());
  if (at == assignment.chain.end()) {  // the joiner starts anew in each epoch
    retire();
    state_.reset();
    incoming_.clear();
    next_.reset();
    buffer_.clear();
    step_ = JoinStep::None;
    last_ = committed_ = acked_ = sent_ = 0;
    whole_at_.reset();
    return;
  }
  if (!state_) build_first_state();
  choose_next();
  forward_from(acked_ + 1);
  advance();
}

/// A member without a state has never been in the chain before, so nothing was acknowledged yet:
/// all members begin with the snapshot of this generation, or with the seed.
void Replica::build_first_state() {
  const auto& [snapshot, clock, step] = host_.view().restored;
  const auto image = host_.environment().load({snapshot, step, place_.table, place_.range});
  if (!image && snapshot != 0)
    throw CheckpointError(fmt::format("snapshot {} has no range {} of table '{}'", snapshot,
                                      place_.range, place_.config().name));
  if (image)
    state_.emplace(place_, *image);
  else
    state_.emplace(place_);
}

void Replica::choose_next() {
  const bool is_tail = place_in_chain_ + 1 == assignment_.chain.size();
  step_ = JoinStep::None;
  transfer_ = {};
  room_behind_ = UINT64_MAX;
  if (!is_tail) {
    // A new successor has at least what the old one acknowledged; the buffer has the rest.
    next_ = assignment_.chain[place_in_chain_ + 1];
    sent_ = acked_;
    return;
  }
  next_ = assignment_.joiner;
  buffer_.clear();
  acked_ = sent_ = last_;
  if (!next_) return;
  step_ = JoinStep::Copying;
  transfer_ = state_->image().frame();
  transfer_sent_ = transfer_acked_ = 0;
  send_transfer();
}

std::optional<Member> Replica::predecessor() const {
  if (place_in_chain_ == 0) return {};
  return assignment_.chain[place_in_chain_ - 1];
}

void Replica::refuse(const Request& request, NodeId from, Reason reason, std::string sentence) {
  host_.refuse(from, {.id = request.id, .reason = reason, .sentence = std::move(sentence)});
}

void Replica::retire() {
  for (const auto& [id, pull] : parked_)
    refuse(pull.request, pull.from, Reason::OtherView, "the range has moved; look at the view");
  parked_.clear();
  waiting_.clear();
}

void Replica::on_request(Request request, NodeId from) {
  if (!is_head() || request.epoch != assignment_.epoch)
    return refuse(request, from, Reason::OtherView,
                  fmt::format("range {} is in epoch {} here, and the request is for epoch {}",
                              place_.range, assignment_.epoch, request.epoch));
  if (!know_keys(request))
    return refuse(request, from, Reason::UnknownKeys, "these keys are not known; send them");
  const bool waits = std::ranges::any_of(
      waiting_, [&](const auto& other) { return other.second.reply.id == request.id; });
  if (waits) return;  // sent again; the answer is on its way
  if (request.push) return admit_push(std::move(request), from);
  if (const auto judgement = state_->judge(request);
      judgement.verdict == RangeState::Verdict::Refuse)
    return refuse(request, from, judgement.reason, judgement.sentence);
  const RequestId id = request.id;
  parked_[id] = {std::move(request), from};
  serve_parked();
}

/// Puts in the keys that the request only names. Returns false if they are not known.
bool Replica::know_keys(Request& request) {
  if (request.key_list == 0) return true;
  if (!request.keys.empty()) {
    if (name_of_keys(request.keys) == request.key_list)
      key_lists_.add(request.key_list, request.keys);
    return true;
  }
  const auto* keys = key_lists_.find(request.key_list);
  if (keys) request.keys = *keys;
  return keys != nullptr;
}

void Replica::admit_push(Request request, NodeId from) {
  const auto judgement = state_->judge(request);
  if (judgement.verdict == RangeState::Verdict::Refuse)
    return refuse(request, from, judgement.reason, judgement.sentence);
  const uint64_t missed = state_->missed(request);
  Parked pull{.request = {.id = request.id,
                          .push = true,
                          .delta = request.delta,
                          .read_version = request.read_version,
                          .keys = request.keys},
              .from = from,
              .missed = missed,
              .repeated = judgement.repeated};
  const bool then_pulls = request.pull;
  if (place_.job->plant == Plant::ReadBeforeWrite && request.pull &&
      place_.config().consistency == Consistency::Free)
    return answer_pull(pull), append({.kind = EntryKind::Push, .request = request});
  if (judgement.verdict == RangeState::Verdict::Apply) {
    // To look up all keys takes as long as half of the update.
    const bool is_limited = chain_room() != UINT64_MAX;
    const size_t more = is_limited ? state_->storage().growth_bytes(request.keys) : 0;
    if (more > chain_room())
      return refuse(request, from, Reason::NoMemory,
                    fmt::format("{}, and {} bytes are left where range {} is held; a push needs {} "
                                "more: add servers, raise server_bytes, or evict rows with "
                                "most_rows",
                                host_.describe_memory(), chain_room(), place_.range, more));
    ++pushes_;
    host_.grew(more);
    // A worker gets its answer before the round, and then uses its memory again.
    if (!then_pulls && place_.job->in_lockstep(place_.table))
      request.values = request.values.kept();
    append({.kind = EntryKind::Push, .request = std::move(request)});
  }
  if (!then_pulls)
    return answer_when_committed(from, {.id = pull.request.id,
                                        .version = state_->version(),
                                        .missed = missed,
                                        .repeated = judgement.repeated});
  parked_[pull.request.id] = std::move(pull);
  serve_parked();
}

void Replica::serve_parked() {
  for (auto at = parked_.begin(); at != parked_.end();) {
    const Clock clock = at->second.request.id.clock + (at->second.request.push ? 1 : 0);
    if (!state_->can_read(clock) || !state_->has_own_writes(at->first, clock)) {
      ++at;
      continue;
    }
    answer_pull(at->second);
    at = parked_.erase(at);
  }
}

void Replica::answer_pull(const Parked& pull) {
  ++pulls_;
  Reply reply{.id = pull.request.id,
              .version = state_->version(),
              .missed = pull.missed,
              .repeated = pull.repeated};
  const Clock clock = pull.request.id.clock;
  if (pull.request.push || clock > 0)
    reply.totals = state_->totals_of(pull.request.push ? clock : clock - 1);
  // Nothing has changed since the client read these values; it has kept them.
  reply.unchanged = pull.request.delta && pull.request.read_version == reply.version;
  if (!reply.unchanged) reply.values = state_->read(pull.request.keys);
  if (place_.job->plant == Plant::DirtyRead) {
    reply.epoch = assignment_.epoch;
    return host_.send(pull.from, reply);
  }
  if (requires_next()) append({.kind = EntryKind::Barrier});
  answer_when_committed(pull.from, std::move(reply));
}

void Replica::answer_when_committed(NodeId to, Reply reply) {
  waiting_.emplace(last_, Waiting{to, std::move(reply)});
  advance();
}

void Replica::follow_view() {
  if (!is_head()) return;
  const View& view = host_.view();
  if (view.workers_version > state_->workers_version())
    append({.kind = EntryKind::Workers,
            .workers_version = view.workers_version,
            .workers = view.workers});
  if (view.snapshot.snapshot > state_->snapshot_order().snapshot)
    append({.kind = EntryKind::Snapshot, .snapshot = view.snapshot});
}

void Replica::append(Entry entry) {
  const EntryKind kind = entry.kind;
  ++last_;
  if (next_) buffer_.push_back(entry);
  // The joiner is sent this later than the worker is answered.
  if (step_ == JoinStep::Copying)
    buffer_.back().request.values = buffer_.back().request.values.kept();
  apply(std::move(entry));
  if (sent_ + 1 == last_) forward_from(last_);
  advance();
  if (kind != EntryKind::Barrier) serve_parked();
}

void Replica::apply(Entry entry) {
  state_->apply(std::move(entry));
  look_whether_whole();
  if (const auto snapshot = state_->snapshot_due()) {
    state_->snapshot_taken();
    if (is_head())
      host_.environment().save(
          {*snapshot, state_->snapshot_order().step, place_.table, place_.range}, state_->image());
  }
}

void Replica::look_whether_whole() {
  if (!state_->is_whole())
    whole_at_.reset();
  else if (!whole_at_)
    whole_at_ = last_;
}

/// Entries go out as they come, unless earlier ones still have to; many together, as after a copy,
/// in portions:
///
///   acked_            sent_                      last_
///     | Forward 1..64   |  when they are acknowledged: 65..128, ...
///
/// A successor that was away must not wait for the time of `resend` after every portion.
void Replica::forward_from(Sequence first) {
  if (!next_ || first > last_ || step_ == JoinStep::Copying) return;
  constexpr size_t kMostEntries = 64, kMostBytes = size_t{64} << 20;
  const auto begin = buffer_.begin() + static_cast<std::ptrdiff_t>(first - acked_ - 1);
  auto end = begin;
  for (size_t entries = 0, bytes = 0;
       end != buffer_.end() && entries < kMostEntries && bytes < kMostBytes; ++end, ++entries)
    bytes += end->request.values.size();
  sent_ = first + static_cast<Sequence>(end - begin) - 1;
  host_.send(node_of(*next_), Forward{.table = place_.table,
                                      .range = place_.range,
                                      .epoch = assignment_.epoch,
                                      .first = first,
                                      .entries = {begin, end}});
}

void Replica::forward_rest() {
  const Sequence begun = std::max(acked_, sent_);
  if (begun < last_) forward_from(begun + 1);
}

/// Sends pieces, but never more than a few that have not been acknowledged.
void Replica::send_transfer() {
  constexpr uint64_t kMostPieces = 4;
  const uint64_t piece = place_.job->transfer_bytes, whole = transfer_.bytes();
  while (transfer_sent_ < whole && transfer_sent_ < transfer_acked_ + kMostPieces * piece) {
    const uint64_t bytes = std::min(piece, whole - transfer_sent_);
    host_.send(node_of(*next_), Transfer{.table = place_.table,
                                         .range = place_.range,
                                         .epoch = assignment_.epoch,
                                         .sequence = acked_,
                                         .begin = transfer_sent_,
                                         .whole_bytes = whole,
                                         .bytes = slice_of(transfer_, transfer_sent_, bytes)});
    transfer_sent_ += bytes;
  }
}

void Replica::on_transfer_ack(const TransferAck& ack, Member from) {
  if (ack.epoch != assignment_.epoch || next_ != from || step_ != JoinStep::Copying) return;
  if (ack.bytes <= transfer_acked_ || ack.bytes > transfer_sent_) return;
  transfer_acked_ = ack.bytes;
  progress_at_ = host_.environment().now();
  send_transfer();
}

void Replica::on_forward(Forward forward, Member from) {
  if (forward.epoch != assignment_.epoch || !state_) return;
  const bool from_tail = place_in_chain_ == assignment_.chain.size();  // to this joiner
  const Member expected = from_tail ? assignment_.chain.back() : predecessor().value_or(Member{});
  if (from != expected) return;
  const bool all_sent = sent_ == last_;
  for (size_t i = 0; i < forward.entries.size(); ++i) {
    const Sequence sequence = forward.first + i;
    if (sequence != last_ + 1) continue;
    if (forward.entries[i].kind == EntryKind::Push)
      if (const std::string error = state_->shape_error(forward.entries[i].request); !error.empty())
        throw CommError(error);
    ++last_;
    if (next_) buffer_.push_back(forward.entries[i]);
    apply(std::move(forward.entries[i]));
  }
  if (all_sent) forward_rest();
  advance();
}

void Replica::on_transfer(const Transfer& transfer, Member from) {
  const bool is_joiner = place_in_chain_ == assignment_.chain.size();
  if (transfer.epoch != assignment_.epoch || !is_joiner || from != assignment_.chain.back()) return;
  constexpr uint64_t kMostAtOnce = uint64_t{1} << 30;  // whatever the length says
  if (state_) return advance();                        // repeats: the acknowledgement was lost
  if (transfer.begin == incoming_.size() && transfer.bytes.size() <= transfer.whole_bytes) {
    incoming_.reserve(std::min<uint64_t>(transfer.whole_bytes, kMostAtOnce));
    incoming_ += transfer.bytes.view();
  }
  host_.send(node_of(from), TransferAck{.table = place_.table,
                                        .range = place_.range,
                                        .epoch = assignment_.epoch,
                                        .bytes = incoming_.size()});
  if (incoming_.size() < transfer.whole_bytes) return;
  state_.emplace(place_, RangeState::Image::parse(std::exchange(incoming_, {})));
  last_ = transfer.sequence;
  look_whether_whole();
  advance();
}

void Replica::on_ack(const Ack& ack, Member from) {
  if (ack.epoch != assignment_.epoch || next_ != from || ack.sequence > last_) return;
  if (ack.sequence < acked_) return;
  buffer_.erase(buffer_.begin(),
                buffer_.begin() + static_cast<std::ptrdiff_t>(ack.sequence - acked_));
  const bool moves = ack.sequence > acked_;
  if (moves) progress_at_ = host_.environment().now();
  acked_ = ack.sequence;
  room_behind_ = ack.room_bytes;
  if (step_ == JoinStep::Copying) {
    step_ = JoinStep::Requiring;
    transfer_ = {};
    join_mark_ = committed_;
    forward_rest();
  } else if (moves) {
    forward_rest();
  }
  advance();
}

/// Works out what all have, tells the one before, and releases the replies that waited for it.
void Replica::advance() {
  const bool is_joiner = place_in_chain_ == assignment_.chain.size();
  const bool planted = place_.job->plant == Plant::AckBeforeChain;
  committed_ = std::max(committed_, requires_next() && !planted ? acked_ : last_);
  if (!is_head() && state_) {
    const Member before = is_joiner ? assignment_.chain.back() : *predecessor();
    host_.send(node_of(before), Ack{.table = place_.table,
                                    .range = place_.range,
                                    .epoch = assignment_.epoch,
                                    .sequence = committed_,
                                    .room_bytes = chain_room()});
    return;
  }
  while (!waiting_.empty() && waiting_.begin()->first <= committed_) {
    Waiting waiting = std::move(waiting_.extract(waiting_.begin()).mapped());
    waiting.reply.epoch = assignment_.epoch;
    host_.send(waiting.to, waiting.reply);
  }
  announce_round();
}

/// Only pushes that the whole chain has count: a head that dies must not take one with it that
/// others have acted on.
void Replica::announce_round() {
  if (!whole_at_ || *whole_at_ > committed_ || !is_head()) return;
  if (place_.job->plant == Plant::ApplyEarly)
    return append(
        {.kind = EntryKind::Round, .clock = state_->round(), .squares = state_->squares()});
  const auto& chain = host_.view().ranges[0].chain;
  if (chain.empty()) return;
  host_.send(node_of(chain[0]), RoundWhole{.table = place_.table,
                                           .range = place_.range,
                                           .clock = state_->round(),
                                           .squares = state_->squares()});
}

void Replica::on_round_ask(const RoundAsk& ask, NodeId from) {
  if (!is_head()) return;
  if (ask.clock == state_->round()) return announce_round();
  if (ask.clock + 1 == state_->round())
    host_.send(from, RoundWhole{.table = place_.table,
                                .range = place_.range,
                                .clock = ask.clock,
                                .squares = state_->last_squares()});
}

void Replica::on_round_ready(const RoundReady& ready) {
  if (is_head() && state_->is_whole() && ready.clock == state_->round())
    append({.kind = EntryKind::Round, .clock = ready.clock, .squares = ready.squares});
}

void Replica::report_snapshot() {
  const uint64_t wanted = host_.view().snapshot.snapshot;
  if (wanted != 0 && saved_ == wanted)
    host_.send(kManager, SnapshotDone{place_.table, place_.range, wanted, saved_contents_});
}

void Replica::on_saved(uint64_t snapshot, std::string contents) {
  if (snapshot <= saved_) return;  // an earlier one, which took longer
  saved_ = snapshot;
  saved_contents_ = std::move(contents);
}

/// Entries go out once as they come. If the acknowledgements make no progress for a while, they go
/// out again from the first that is missing.
void Replica::resend() {
  const Time now = host_.environment().now();
  const bool is_idle = !next_ || !state_ || (buffer_.empty() && step_ != JoinStep::Copying);
  if (is_idle) progress_at_ = now;
  if (is_idle || now - progress_at_ < place_.job->timing.retry) return;
  progress_at_ = now;
  if (step_ == JoinStep::Copying) {
    // Of a copy that has come whole, the last piece: it asks for the Ack again.
    const uint64_t whole = transfer_.bytes(), piece = std::min(place_.job->transfer_bytes, whole);
    transfer_sent_ = transfer_acked_ < whole ? transfer_acked_ : whole - piece;
    return send_transfer();
  }
  forward_from(acked_ + 1);
}

void Replica::tick() {
  resend();
  if (!is_head()) return;
  follow_view();
  announce_round();
  report_snapshot();
}

}  // namespace trireme::ps
