#include "trireme/ps/range_state.h"

#include <algorithm>
#include <cmath>

#include "trireme/core/error.h"
#include "trireme/ps/archive.h"

namespace trireme::ps {

RangeState::RangeState(const Place& place)
    : place_(place),
      lockstep_(place.job->in_lockstep(place.table)),
      storage_(make_storage(place)) {}

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
  const size_t elems = dense ? block_of(place_).elems : request.keys.size() * config.elems;
  if (request.values.size() != elems * bytes_of(config.type))
    return fmt::format("a push to range {} of table '{}' has {} bytes, but {} are expected",
                       place_.range, config.name, request.values.size(),
                       elems * bytes_of(config.type));
  if (!(request.weight > 0) || !std::isfinite(request.weight) || !std::isfinite(request.rate))
    return fmt::format(
        "a push to table '{}' has weight {} and rate {}; both must be finite, and "
        "the weight above 0",
        config.name, request.weight, request.rate);
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
  if (!applied_.insert(request.batch)) return;
  constexpr uint64_t kMostCounted = 1024;  // the last count of the histogram: as many, or more
  const uint64_t missed = version_ - std::min(version_, request.read_version);
  ++staleness_[std::min(missed, kMostCounted)];
  const double slower =
      place_.config().staleness_aware ? 1.0 / (1.0 + static_cast<double>(missed)) : 1.0;
  storage_->apply({.keys = request.keys,
                   .pushed = request.values,
                   .divisor = place_.config().batch_weight,
                   .rate = request.rate * slower});
  ++version_;
}

bool RangeState::is_whole() const {
  return lockstep_ && pending_.size() == place_.job->workers;
}

double RangeState::squares() const {
  if (place_.config().clip_norm == 0) return 0;
  const auto sum = make_gradient_sum(place_);
  for (const auto& [lane, push] : pending_) sum->add(push.keys, push.values);
  return sum->squares();
}

void RangeState::apply_round(const Entry& entry) {
  if (entry.clock != round_ || !is_whole()) return;
  const auto sum = make_gradient_sum(place_);
  double weight = 0;
  for (const auto& [lane, push] : pending_) {
    sum->add(push.keys, push.values);
    weight += push.weight;
  }
  const double clip = place_.config().clip_norm;
  const double too_long = clip > 0 ? std::max(1.0, entry.norm / weight / clip) : 1.0;
  storage_->apply({.keys = sum->keys(),
                   .pushed = sum->values(),
                   .divisor = weight * too_long,
                   .rate = pending_.begin()->second.rate});
  last_squares_ = clip > 0 ? sum->squares() : 0;
  pending_.clear();
  ++round_;
  ++version_;
}

void RangeState::apply_workers(const Entry& entry) {
  std::map<uint32_t, Progress> workers;
  for (const ActiveWorker& active : entry.workers) {
    const auto known = workers_.find(active.worker);
    const Clock reached = known == workers_.end() ? 0 : known->second.clock;
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
  archive(applied_, workers_, workers_version_, version_, round_, pending_, last_squares_, order_,
          saved_, staleness_);
}

std::string RangeState::save() const {
  Writer writer;
  const_cast<RangeState*>(this)->fields(writer);
  writer(storage_->save());
  return writer.take();
}

void RangeState::load(std::string_view bytes) {
  Reader reader(bytes);
  std::string values;
  fields(reader);
  reader(values);
  reader.finish();
  storage_ = make_storage(place_);
  storage_->load(values);
  for (const auto& [lane, push] : pending_)
    if (const std::string error = shape_error(push); !error.empty()) throw CommError(error);
  if (place_.job->plant == Plant::ForgetApplied) applied_ = {};
}

}  // namespace trireme::ps
