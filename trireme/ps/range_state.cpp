#include "trireme/ps/range_state.h"

#include <algorithm>
#include <cmath>

#include "trireme/core/clip.h"
#include "trireme/core/error.h"
#include "trireme/ps/archive.h"
#include "trireme/ps/values.h"

namespace trireme::ps {

RangeState::RangeState(const Place& place)
    : place_(place),
      lockstep_(place.job->in_lockstep(place.table)),
      storage_(make_storage(place)),
      round_(lockstep_ ? place.job->data.begin / place.job->workers : 0) {}

/// The bytes that a push must have: as they travel, so fewer with a filter.
size_t RangeState::pushed_bytes(const Request& request) const {
  const TableConfig& config = place_.config();
  const size_t elems = config.kind == TableKind::Dense
                           ? block_of(*place_.job, place_.table, place_.range).elems
                           : request.keys.size() * config.elems;
  return config.filter ? config.filter->num_bytes(elems) : elems * bytes_of(config.type);
}

std::string RangeState::shape_error(const Request& request) const {
  const TableConfig& config = place_.config();
  const bool dense = config.kind == TableKind::Dense;
  if (dense && !request.keys.empty())
    return fmt::format("table '{}' is dense, but the request names {} keys", config.name,
                       request.keys.size());
  for (const uint64_t key : request.keys)
    if (range_of(key, place_.job->ranges) != place_.range)
      return fmt::format("key {} of table '{}' does not lie in range {}", key, config.name,
                         place_.range);
  if (!request.push) return {};
  const size_t bytes = pushed_bytes(request);
  if (request.values.size() != bytes && !(request.weight == 0 && request.values.empty()))
    return fmt::format("a push to range {} of table '{}' has {} bytes, but {} are expected",
                       place_.range, config.name, request.values.size(), bytes);
  if (!(request.weight >= 0) || !(request.divisor > 0) ||
      !std::isfinite(request.weight + request.divisor + request.rate))
    return fmt::format(
        "a push to table '{}' has weight {}, divisor {} and rate {}; all must be finite, the "
        "weight at least 0 and the divisor more",
        config.name, request.weight, request.divisor, request.rate);
  return {};
}

RangeState::Judgement RangeState::judge(const Request& request) const {
  if (std::string error = shape_error(request); !error.empty())
    return {.verdict = Verdict::Refuse, .sentence = std::move(error)};
  // A worker without work may read, too: it is not among those that reads wait for.
  const auto worker = workers_.find(request.id.worker);
  const bool works = worker != workers_.end() && worker->second.life == request.id.life;
  const bool is_over = worker != workers_.end() && worker->second.life > request.id.life;
  if (is_over || (request.push && !works))
    return {.verdict = Verdict::Refuse,
            .reason = Reason::EarlierLife,
            .sentence = fmt::format("life {} of worker {} is over; ask the manager for another",
                                    request.id.life, request.id.worker)};
  if (!request.push) return {};
  return judge_push(request, worker->second);
}

RangeState::Judgement RangeState::judge_push(const Request& request,
                                             const Progress& progress) const {
  const Clock clock = request.id.clock;
  if (request.batch >= place_.job->batches())
    return {.verdict = Verdict::Refuse,
            .sentence = fmt::format("batch {} is not in the data order, which has {}",
                                    request.batch, place_.job->batches())};
  if (clock < progress.start)
    return {.verdict = Verdict::Refuse,
            .sentence = fmt::format("worker {} pushes clock {}, but its life {} began at clock {}",
                                    request.id.worker, clock, progress.life, progress.start)};
  if (lockstep_) {
    const uint32_t lanes = place_.job->workers;
    if (request.batch % lanes != request.id.worker || request.batch / lanes != clock)
      return {.verdict = Verdict::Refuse,
              .sentence = fmt::format("batch {} is not the one of worker {} at clock {}",
                                      request.batch, request.id.worker, clock)};
    if (clock < round_) return {.verdict = Verdict::Retry};
    if (clock == round_)
      return {.verdict = pending_.contains(request.id.worker) ? Verdict::Retry : Verdict::Apply};
    if (clock == round_ + 1)  // a worker that read nothing here may be ahead of the round
      return {.verdict = Verdict::Refuse,
              .reason = Reason::TooEarly,
              .sentence = fmt::format("clock {} is not applied yet", round_)};
  } else {
    if (clock < progress.clock) return {.verdict = Verdict::Retry};
    if (clock == progress.clock) return {.repeated = applied_.contains(request.batch)};
  }
  return {.verdict = Verdict::Refuse,
          .sentence = fmt::format("worker {} pushes clock {} before clock {}", request.id.worker,
                                  clock, lockstep_ ? round_ : progress.clock)};
}

void RangeState::apply(Entry entry) {
  switch (entry.kind) {
    case EntryKind::Push: return apply_push(std::move(entry.request));
    case EntryKind::Round: return apply_round(entry);
    case EntryKind::Workers: return apply_workers(entry);
    case EntryKind::Snapshot: order_ = entry.snapshot; return;
    case EntryKind::Barrier: return;
  }
}

void RangeState::apply_push(Request request) {
  Progress& progress = workers_[request.id.worker];
  progress.clock = std::max(progress.clock, request.id.clock + 1);
  if (lockstep_) {
    const uint32_t lane = request.id.worker;
    pending_[lane] = std::move(request);
    return;
  }
  if (!applied_.insert(request.batch) || request.weight == 0) return;
  const double slower =
      place_.config().staleness_aware ? 1.0 / (1.0 + static_cast<double>(missed(request))) : 1.0;
  const Payload values = unfiltered(request);
  const Gradient push{request.keys, values.view()};
  storage_->apply({&push, 1}, {.rate = request.rate * slower, .divisor = request.divisor});
  ++version_;
}

Payload RangeState::unfiltered(const Request& request) const {
  const TableConfig& config = place_.config();
  if (!config.filter) return request.values;
  const size_t elems = config.kind == TableKind::Dense
                           ? block_of(*place_.job, place_.table, place_.range).elems
                           : request.keys.size() * config.elems;
  std::vector<float> numbers(elems);
  config.filter->decode(request.values.view(), numbers);
  return bytes_of_values<float>(numbers);
}

bool RangeState::is_whole() const {
  return lockstep_ && pending_.size() == place_.job->workers;
}

/// The pushes of this clock that have something to add, in the order of the lanes.
std::vector<Gradient> RangeState::pending_gradients(std::vector<Payload>& kept) const {
  std::vector<Gradient> pushes;
  for (const auto& [lane, push] : pending_) {
    if (push.weight == 0) continue;
    kept.push_back(unfiltered(push));
    pushes.push_back({push.keys, kept.back().view()});
  }
  return pushes;
}

double RangeState::squares() const {
  std::vector<Payload> kept;
  const auto pushes = pending_gradients(kept);
  const bool counts = place_.config().clip_norm > 0 || place_.config().check_finite;
  return !counts || pushes.empty() ? 0 : storage_->squares(pushes);
}

/// Divides by the weights that came, and by more where the gradient is too long. All ranges get the
/// same squares, so all of them apply the clock or none does.
void RangeState::apply_round(const Entry& entry) {
  if (entry.clock != round_ || !is_whole()) return;
  const double clip = place_.config().clip_norm;
  last_squares_ = squares();
  ClockTotals totals;
  for (const auto& [lane, push] : pending_) {
    totals.weight += push.weight;
    totals.loss += push.loss;
  }
  if (totals.weight > 0) totals.norm = std::sqrt(entry.squares) / totals.weight;
  const bool is_good = !place_.config().check_finite || std::isfinite(totals.norm);
  if (totals.weight > 0 && is_good) {
    std::vector<Payload> kept;
    storage_->apply(pending_gradients(kept),
                    {.rate = pending_.begin()->second.rate,
                     .divisor = totals.weight * core::clip_divisor(totals.norm, clip)});
  }
  remember(totals);
  pending_.clear();
  ++round_;
  ++version_;
}

void RangeState::remember(const ClockTotals& totals) {
  if (totals_.size() > place_.job->data.steps_per_task) totals_.erase(totals_.begin());
  totals_.push_back(totals);
}

ClockTotals RangeState::totals_of(Clock clock) const {
  const Clock age = round_ - std::min(round_, clock);  // 1: the newest
  if (clock >= round_ || age > totals_.size()) return {};
  return totals_[totals_.size() - age];
}

void RangeState::apply_workers(const Entry& entry) {
  std::map<uint32_t, Progress> workers;
  for (const ActiveWorker& active : entry.workers) {
    const auto known = workers_.find(active.worker);
    const Clock reached = known == workers_.end() ? 0 : known->second.clock;
    // A worker that begins anew writes where the gradients of its last life are.
    if (const auto push = pending_.find(active.worker);
        push != pending_.end() && push->second.id.life != active.life)
      push->second.values = push->second.values.kept();
    workers[active.worker] = {active.life, active.start, std::max(reached, active.start)};
  }
  workers_ = std::move(workers);
  workers_version_ = entry.workers_version;
}

bool RangeState::can_read(Clock clock) const {
  const TableConfig& config = place_.config();
  if (lockstep_) return round_ >= clock;
  if (config.consistency == Consistency::Free) return true;
  const auto tau = static_cast<Clock>(config.tau) + (place_.job->plant == Plant::LooseBound);
  return std::ranges::all_of(
      workers_, [&](const auto& worker) { return worker.second.clock + tau >= clock; });
}

/// A worker without work has nothing under way. In lockstep the round says it: a worker that
/// repeats a clock after a return to a snapshot may find it applied, and its push is not counted
/// again.
bool RangeState::has_own_writes(const RequestId& reader, Clock clock) const {
  if (lockstep_) return round_ >= clock;
  const auto own = workers_.find(reader.worker);
  return own == workers_.end() || own->second.life != reader.life || own->second.clock >= clock;
}

/// In lanes the manager counts all tasks before the order's clock as done when it goes back to the
/// snapshot. So a range waits until it has them, of all lanes, and in lockstep it has no others.
std::optional<uint64_t> RangeState::snapshot_due() const {
  if (order_.snapshot <= saved_) return {};
  if (!place_.job->in_lanes()) return order_.snapshot;
  const bool has_reached = lockstep_ ? round_ >= order_.clock
                                     : workers_.size() == place_.job->workers &&
                                           std::ranges::all_of(workers_, [&](const auto& worker) {
                                             return worker.second.clock >= order_.clock;
                                           });
  return has_reached ? std::optional(order_.snapshot) : std::nullopt;
}

void RangeState::snapshot_taken() {
  saved_ = order_.snapshot;
}

template <class Archive>
void RangeState::fields(Archive& archive) {
  archive(applied_, workers_, workers_version_, version_, round_, pending_, last_squares_, totals_,
          order_, saved_);
}

RangeState::Image RangeState::image() const {
  Writer writer;
  const_cast<RangeState*>(this)->fields(writer);
  return {writer.take(), storage_->image()};
}

void RangeState::load(const Image& image) {
  Reader reader(std::string_view(image.fields));
  fields(reader);
  reader.finish();
  storage_->load(image.storage);
  for (const auto& [lane, push] : pending_)
    if (const std::string error = shape_error(push); !error.empty()) throw CommError(error);
  if (place_.job->plant == Plant::ForgetApplied) applied_ = {};
}

void RangeState::adopt_batches(std::string_view bytes) {
  Reader reader(bytes);
  reader(applied_);
}

Frame RangeState::Image::frame() const {
  Writer writer;
  writer(fields, storage.sparse.keys, storage.sparse.touched, storage.sparse.touches,
         storage.parts);
  return writer.take_frame();
}

RangeState::Image RangeState::Image::parse(const Frame& frame) {
  Reader reader(frame);
  Image image;
  reader(image.fields, image.storage.sparse.keys, image.storage.sparse.touched,
         image.storage.sparse.touches, image.storage.parts);
  reader.finish();
  return image;
}

}  // namespace trireme::ps
