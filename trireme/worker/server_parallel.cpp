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

at::ScalarType scalar_type_of(ValueType type) {
  return type == ValueType::Float64 ? at::kDouble : at::kFloat;
}

std::size_t width_of(at::ScalarType type) {
  return c10::elementSize(type);
}

}  // namespace

ServerParallel::ServerParallel(parallel::Attached& attached, Client& client)
    : attached_(attached), client_(client) {
  const int ranks = attached.mesh().world().size();
  core::check(ranks == static_cast<int>(client.job().worker_ranks),
              "ServerParallel: the mesh has {} ranks, but workers of job '{}' have {}", ranks,
              client.job().name, client.job().worker_ranks);
  core::check(attached.asynchronous() == nullptr,
              "ServerParallel: this pipeline updates weights by itself; use a schedule that drains");
  find_table();
  find_held_alike();
}

ServerParallel::ServerParallel(torch::nn::Module& module, Client& client)
    : own_(std::make_unique<parallel::DataParallel>(module, mesh_of_one())),
      attached_(*own_),
      client_(client) {
  core::check(client.job().worker_ranks == 1,
              "ServerParallel: workers of job '{}' have {} ranks; attach the module to their mesh "
              "first, and give what is attached",
              client.job().name, client.job().worker_ranks);
  find_table();
}

/// The push under way reads gradients_.
ServerParallel::~ServerParallel() {
  if (!pushed_) return;
  try {
    (void)client_.wait(pushed_->pending);
  } catch (const std::exception&) {  // of a life that is over, or a job that has ended
  }
}

/// Finds this rank's table, and for each of its pieces the shard that has these elements.
void ServerParallel::find_table() {
  const JobConfig& job = client_.job();
  using Key = std::tuple<std::string, std::vector<int64_t>, int64_t>;
  std::map<Key, std::pair<std::size_t, std::size_t>> parts;
  const auto& shards = attached_.shards();
  for (std::size_t s = 0; s < shards.size(); ++s)
    for (std::size_t p = 0; p < shards[s].pieces.size(); ++p)
      if (shards[s].reductions[p].counts && shards[s].pieces[p].count > 0) {
        const Piece& piece = shards[s].pieces[p];
        parts[{piece.name, piece.offset, piece.begin}] = {s, p};
      }
  const auto rank = static_cast<uint32_t>(attached_.mesh().world().rank());
  for (TableId table = 0; table < job.tables.size(); ++table)
    if (job.tables[table].rank == rank && !job.tables[table].pieces.empty()) table_ = table;
  const std::size_t wanted = table_ ? job.tables[*table_].pieces.size() : 0;
  core::check(wanted == parts.size(),
              "ServerParallel: rank {} of this worker trains {} pieces of parameters, but its table "
              "has {}; give all processes the same model",
              rank, parts.size(), wanted);
  if (!table_) return;
  const TableConfig& config = job.tables[*table_];
  const auto begins = piece_begins(config);
  for (std::size_t i = 0; i < config.pieces.size(); ++i) {
    const Piece& piece = config.pieces[i];
    const auto found = parts.find({piece.name, piece.offset, piece.begin});
    core::check(found != parts.end() &&
                    shards[found->second.first].pieces[found->second.second] == piece,
                "ServerParallel: table '{}' has a piece of '{}' that this rank does not train; give "
                "all processes the same model",
                config.name, piece.name);
    places_.push_back({found->second.first, found->second.second,
                       static_cast<int64_t>(begins[i]), piece.count});
  }
  take_memory();
}

/// Memory for the gradients that no server reads any more: that of a push whose answer never came
/// may still be read.
void ServerParallel::take_memory() {
  const TableConfig& config = client_.job().tables[*table_];
  const auto type = scalar_type_of(config.type);
  memory_ = client_.arena()->take(config.elems * width_of(type));
  gradients_ = at::from_blob(memory_.get(), {static_cast<int64_t>(config.elems)}, type);
  gradients_.zero_();
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

at::Tensor ServerParallel::part_of(std::size_t shard, std::size_t part,
                                   const at::Tensor& of) const {
  return attached_.shards()[shard].part(of, part);
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

Client::Operation ServerParallel::operation() const {
  return {.table = *table_, .clock = step_.clock, .view_version = step_.view_version};
}

/// In lockstep the weights of a clock are the same whenever they are read, so those that came with
/// the last push of a task serve the next one. Otherwise a task begins with the newest.
bool ServerParallel::in_lockstep() const {
  return client_.job().in_lanes();
}

void ServerParallel::begin(const Client::Work& work, std::size_t step) {
  const Step next{.clock = work.clock + step,
                  .view_version = work.view_version,
                  .batch = work.batches[step],
                  .pulls = in_lockstep() || step + 1 < work.batches.size()};
  end();
  step_ = next;
  const bool fresh = in_lockstep() || step > 0;
  if (!fresh || has_ != next.clock) read(next.clock, work.view_version);
}

void ServerParallel::read(Clock clock, uint64_t view_version) {
  agree([&] {
    wait_for_push();
    has_.reset();
    if (!table_) return;
    take_weights(client_.wait(client_.start(
        {.table = *table_, .clock = clock, .view_version = view_version, .pull = true})));
  });
  show_weights(clock);
}

/// The masters have new values.
void ServerParallel::show_weights(Clock clock) {
  spread();
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
  const auto type = gradients_.scalar_type();
  const auto begin = static_cast<int64_t>(block.begin);
  const auto end = begin + static_cast<int64_t>(block.values.size() / width_of(type));
  auto place = std::ranges::upper_bound(places_, begin, {}, &Place::begin);
  if (place != places_.begin()) --place;
  for (; place != places_.end() && place->begin < end; ++place) {
    const int64_t from = std::max(begin, place->begin),
                  until = std::min(end, place->begin + place->count);
    if (from >= until) continue;
    const char* bytes = block.values.data() + static_cast<std::size_t>(from - begin) * width_of(type);
    const at::Tensor values =
        at::from_blob(const_cast<char*>(bytes), {until - from}, type);  // only read
    const at::Tensor part =
        part_of(place->shard, place->part, attached_.shards()[place->shard].master);
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
      const at::Tensor own = part_of(shard, part, attached_.shards()[shard].master);
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
  const double clip = table_ ? job.tables[*table_].clip_norm : 0;
  const double norm = totals.weight > 0 ? totals.norm / totals.weight : 0;
  push({.weight = totals.weight,
        .loss = totals.loss,
        .divisor = std::max(totals.weight, 0.0) * core::clip_divisor(norm, clip),
        .rate = rate});
  return totals;
}

/// Copies the gradients to the memory that servers read.
void ServerParallel::fill_gradients() {
  const at::NoGradGuard guard;
  for (const auto& [shard, part, begin, count] : places_) {
    at::Tensor to = gradients_.narrow(0, begin, count);
    const at::Tensor& gradient = attached_.shards()[shard].gradient();
    if (!gradient.defined()) {
      to.zero_();
      continue;
    }
    const at::Tensor own = part_of(shard, part, gradient);
    to.view(own.sizes()).copy_(own);
  }
}

void ServerParallel::push(const PushNumbers& numbers) {
  core::check(!pushed_, "ServerParallel: a step was pushed already; call begin for the next one");
  if (!table_) {
    pushed_.emplace(Pushed{{}, step_});
    return;
  }
  const bool is_empty = numbers.weight == 0;
  if (!is_empty) fill_gradients();
  Client::Operation op = operation();
  op.push = true;
  op.pull = step_.pulls;
  op.batch = step_.batch;
  op.weight = numbers.weight;
  op.loss = numbers.loss;
  const double parts = numbers.parts > 0 ? numbers.parts : client_.job().workers;
  const double divisor = numbers.divisor * parts;
  op.divisor = divisor > 0 && std::isfinite(divisor) ? divisor : 1;
  op.rate = numbers.rate;
  if (!is_empty)
    op.values = Payload(memory_, {static_cast<const char*>(memory_.get()), gradients_.nbytes()});
  pushed_.emplace(Pushed{client_.start(std::move(op)), step_});
}

/// Takes the answer to the last push. If weights came with it, they are shown when all ranks of
/// the worker have theirs: see `agree`.
void ServerParallel::wait_for_push() {
  if (!pushed_) return;
  const Pushed pushed = *std::exchange(pushed_, {});
  has_.reset();
  came_ = pushed.step.pulls;
  if (!table_) {
    outcome_ = {.batch = pushed.step.batch};
    return;
  }
  const Client::Result result = [&] {
    try {
      return client_.wait(pushed.pending);
    } catch (const LifeLost&) {
      take_memory();
      throw;
    }
  }();
  outcome_ = {.batch = pushed.step.batch,
              .missed = result.missed,
              .repeated = result.repeated > 0,
              .totals = result.totals};
  if (pushed.step.pulls) take_weights(result);
}

void ServerParallel::end() {
  agree([&] { wait_for_push(); });
  if (came_) show_weights(step_.clock + 1);
}

}  // namespace trireme::ps
