#include "trireme/worker/server_parallel.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "trireme/comm/texts.h"
#include "trireme/core/clip.h"
#include "trireme/core/error.h"
#include "trireme/parallel/data_parallel.h"

namespace trireme::ps {

namespace {

std::size_t width_of(at::ScalarType type) {
  return c10::elementSize(type);
}

}  // namespace

ServerParallel::ServerParallel(parallel::Attached& attached, Client& client,
                               std::shared_ptr<PushReducer> reducer)
    : client_(client),
      reducer_(std::move(reducer)),
      attached_(attached),
      buffers_(attached_, client) {
  const int ranks = attached.mesh().world().size();
  core::check(ranks == static_cast<int>(client.job().worker_ranks),
              "ServerParallel: the mesh has {} ranks, but workers of job '{}' have {}", ranks,
              client.job().name, client.job().worker_ranks);
  core::check(
      attached.asynchronous() == nullptr,
      "ServerParallel: this pipeline updates weights by itself; use a schedule that drains");
  core::check(&attached.reducer() == reducer_.get(),
              "ServerParallel: gradients go through another reducer; attach with this one");
  reducer_->bind(attached_);
  find_held_alike();
}

ServerParallel::ServerParallel(torch::nn::Module& module, Client& client)
    : client_(client),
      reducer_(std::make_shared<PushReducer>(mesh_of_one(), client)),
      own_(std::make_unique<parallel::DataParallel>(
          module, mesh_of_one(), parallel::DataParallelOptions{.reducer = reducer_})),
      attached_(*own_),
      buffers_(attached_, client) {
  core::check(client.job().worker_ranks == 1,
              "ServerParallel: workers of job '{}' have {} ranks; attach the module to their mesh "
              "with a PushReducer, and give what is attached",
              client.job().name, client.job().worker_ranks);
  reducer_->bind(attached_);
}

/// The elements that another rank counts come from it, the first of those that hold them. Makes a
/// group for each set of ranks that hold something alike, in the same order on all ranks.
void ServerParallel::find_held_alike() {
  const auto& shards = attached_.shards();
  const Mesh& mesh = attached_.mesh();
  using Ranks = std::vector<int>;
  std::map<Ranks, std::vector<std::pair<std::size_t, std::size_t>>> mine;
  for (std::size_t s = 0; s < shards.size(); ++s)
    for (std::size_t p = 0; p < shards[s].pieces.size(); ++p) {
      Ranks same = ranks_of(shards[s].reductions[p].same, mesh.coord(), mesh.degrees());
      if (same.size() > 1) mine[std::move(same)].emplace_back(s, p);
    }
  core::Json own = core::Json::array();
  for (const auto& [ranks, parts] : mine) own.push_back(ranks);
  std::set<Ranks> all;
  for (const std::string& text : comm::all_gather_texts(mesh.world(), own.dump()))
    for (const core::Json& ranks : core::parse_json(text, "what a rank holds"))
      all.insert(ranks.get<Ranks>());
  for (const Ranks& ranks : all) {
    const auto found = mine.find(ranks);
    const comm::Communicator group =
        mesh.world().split("alike", found == mine.end() ? 1 : 0, mesh.world().rank());
    if (found == mine.end()) continue;
    std::ranges::sort(found->second, {}, [&](const auto& one) {
      const Piece& piece = shards[one.first].pieces[one.second];
      return std::tuple(piece.name, piece.offset, piece.begin);
    });
    alike_.push_back({group, std::move(found->second)});
  }
}

/// Runs what may throw LifeLost, on all ranks of the worker or on none: they make collectives
/// together. What was read in a life that is over counts no more.
void ServerParallel::agree(const std::function<void()>& body) {
  const comm::Communicator& ranks = attached_.mesh().world();
  std::exception_ptr lost;
  try {
    body();
  } catch (const LifeLost&) {
    lost = std::current_exception();
  }
  double any = lost ? 1 : 0;
  if (ranks.size() > 1) {
    at::Tensor sum = at::full({1}, any, at::kDouble);
    ranks.all_reduce(sum).wait();
    any = sum.item<double>();
  }
  if (any == 0) return;
  has_.reset();
  came_ = false;
  if (lost) std::rethrow_exception(lost);
  throw LifeLost("another rank of this worker has lost its life; ask for work");
}

void ServerParallel::begin(TrainingStep& step) {
  end();
  step_ = {.clock = step.clock(),
           .view_version = step.view_version(),
           .batch = step.batch(),
           .told = &step};
  read(step.clock(), step.view_version());
}

/// In lockstep the weights of a clock are the same whenever they are read, so those that came with
/// the last push of a task serve the next one. Otherwise a task begins with the newest.
void ServerParallel::begin(const Client::Work& work, std::size_t step) {
  end();
  step_ = {.clock = work.clock + step,
           .view_version = work.view_version,
           .batch = work.batches[step],
           .pulls = in_lockstep() || step + 1 < work.batches.size()};
  const bool may_keep = in_lockstep() || step > 0;
  if (!may_keep || has_ != step_.clock) read(step_.clock, work.view_version);
}

void ServerParallel::read(const TrainingStep& step) {
  read(step.clock(), step.view_version());
}

void ServerParallel::read(Clock clock, uint64_t view_version) {
  agree([&] {
    wait_for_push();
    has_.reset();
    Client::Operation pull{.clock = clock, .view_version = view_version, .pull = true};
    Client::Pending buffers;
    if (buffers_.table()) {
      pull.table = *buffers_.table();
      buffers = client_.start(pull);
    }
    if (reducer_->table()) {
      pull.table = *reducer_->table();
      take_weights(client_.wait(client_.start(pull)));
    }
    if (buffers.started()) buffers_.take(client_.wait(buffers));
  });
  show_weights(clock);
}

/// The masters have new values.
void ServerParallel::show_weights(Clock clock) {
  spread();
  buffers_.spread();
  attached_.updated();
  has_ = clock;
  came_ = false;
}

void ServerParallel::take_weights(const Client::Result& result) {
  for (const ClientNode::PulledBlock& block : result.blocks) take_block(block);
}

/// Copies the pulled values of a range to the masters that lie in it.
void ServerParallel::take_block(const ClientNode::PulledBlock& block) {
  if (block.unchanged) return;
  const at::NoGradGuard guard;
  const auto type = reducer_->dtype();
  const auto& places = reducer_->places();
  const auto begin = static_cast<int64_t>(block.begin);
  const auto end = begin + static_cast<int64_t>(block.values.size() / width_of(type));
  auto place = std::ranges::upper_bound(places, begin, {}, &TablePlace::begin);
  if (place != places.begin()) --place;
  for (; place != places.end() && place->begin < end; ++place) {
    const int64_t from = std::max(begin, place->begin),
                  until = std::min(end, place->begin + place->count);
    if (from >= until) continue;
    const char* bytes =
        block.values.data() + static_cast<std::size_t>(from - begin) * width_of(type);
    const at::Tensor values =
        at::from_blob(const_cast<char*>(bytes), {until - from}, type);  // only read
    const parallel::ParameterShard& shard = attached_.shards()[place->shard];
    const at::Tensor part = shard.part(shard.master, place->part);
    if (part.is_contiguous()) {
      part.view({-1}).narrow(0, from - place->begin, until - from).copy_(values);
      continue;
    }
    at::Tensor flat = part.reshape({-1});  // a copy: a box of a larger tensor
    flat.narrow(0, from - place->begin, until - from).copy_(values);
    part.copy_(flat.view(part.sizes()));
  }
}

/// Ranks that hold the same elements get them from the first of them, which counts.
void ServerParallel::spread() {
  const at::NoGradGuard guard;
  for (const auto& [group, parts] : alike_) {
    std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
    for (const auto& [shard, part] : parts) {
      const parallel::ParameterShard& held = attached_.shards()[shard];
      const at::Tensor own = held.part(held.master, part);
      by_type[own.scalar_type()].push_back(own);
    }
    for (const auto& [type, tensors] : by_type) {
      std::vector<at::Tensor> flat;
      for (const at::Tensor& one : tensors) flat.push_back(one.reshape({-1}));
      at::Tensor all = at::cat(flat);
      group.broadcast(all, 0).wait();
      int64_t begin = 0;
      for (const at::Tensor& one : tensors) {
        one.copy_(all.narrow(0, begin, one.numel()).view(one.sizes()));
        begin += one.numel();
      }
    }
  }
}

void ServerParallel::backward(const nn::Loss& loss, parallel::Micro micro) {
  core::check(own_ != nullptr, "ServerParallel::backward: call that of what is attached");
  own_->backward(loss, micro);
}

parallel::Totals ServerParallel::finish(double rate) {
  const parallel::Totals totals =
      attached_.finish({.divide = parallel::Divide::Later, .norm = true});
  const JobConfig& job = client_.job();
  const double clip = reducer_->table() ? job.tables[*reducer_->table()].clip_norm : 0;
  const double norm = totals.weight > 0 ? totals.norm / totals.weight : 0;
  push({.weight = totals.weight,
        .loss = totals.loss,
        .divisor = std::max(totals.weight, 0.0) * core::clip_divisor(norm, clip),
        .rate = rate});
  return totals;
}

void ServerParallel::push(const PushNumbers& numbers) {
  core::check(!pushed_, "ServerParallel: a step was pushed already; call begin for the next one");
  Pushed pushed{.weights = {}, .buffers = {}, .step = step_};
  if (reducer_->table()) {
    Client::Operation operation = operation_of(step_);
    operation.table = *reducer_->table();
    pushed.weights = reducer_->push(std::move(operation), numbers, step_.told);
  }
  if (buffers_.table()) pushed.buffers = push_buffers(numbers.weight);
  pushed_.emplace(std::move(pushed));
}

Client::Operation ServerParallel::operation_of(const Step& step) const {
  return {.clock = step.clock,
          .view_version = step.view_version,
          .pull = step.pulls,
          .batch = step.batch};
}

Client::Pending ServerParallel::push_buffers(double weight) {
  Client::Operation operation = buffers_.push(operation_of(step_), weight);
  if (step_.told == nullptr) return client_.start(std::move(operation));
  return step_.told->push(std::move(operation), operation.weight);
}

/// Takes the answers to the last push. If weights came with them, they are shown when all ranks of
/// the worker have theirs: see `agree`.
void ServerParallel::wait_for_push() {
  if (!pushed_) return;
  const Pushed pushed = *std::exchange(pushed_, {});
  has_.reset();
  came_ = pushed.step.pulls;
  PushOutcome outcome{.batch = pushed.step.batch};
  if (pushed.weights.started()) {
    const Client::Result result = [&] {
      try {
        return client_.wait(pushed.weights);
      } catch (const LifeLost&) {
        reducer_->take_memory();
        throw;
      }
    }();
    outcome.missed = result.missed;
    outcome.repeated = result.repeated > 0;
    outcome.totals = result.totals;
    if (pushed.step.pulls) take_weights(result);
  }
  if (pushed.buffers.started()) {
    const Client::Result result = client_.wait(pushed.buffers);
    if (pushed.step.pulls) buffers_.take(result);
  }
  outcome_ = outcome;
}

void ServerParallel::end() {
  agree([&] { wait_for_push(); });
  if (came_) show_weights(step_.clock + 1);
}

}  // namespace trireme::ps
