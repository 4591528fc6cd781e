#include "trireme/worker/push_reducer.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <map>

#include "trireme/core/error.h"
#include "trireme/worker/buffer_table.h"

namespace trireme::ps {

namespace {

at::ScalarType scalar_type_of(ValueType type) {
  return type == ValueType::Float64 ? at::kDouble : at::kFloat;
}

}  // namespace

PushReducer::PushReducer(const Mesh& mesh, Client& client)
    : Reducer(mesh),
      inner_(parallel::make_reducer(mesh)),
      client_(client),
      rank_(mesh.world().rank()) {}

void PushReducer::bind(const parallel::Attached& attached) {
  attached_ = &attached;
  using Key = std::tuple<std::string, std::vector<int64_t>, int64_t>;
  std::map<Key, std::pair<std::size_t, std::size_t>> parts;
  const auto& shards = attached.shards();
  for (std::size_t s = 0; s < shards.size(); ++s)
    for (std::size_t p = 0; p < shards[s].pieces.size(); ++p)
      if (shards[s].reductions[p].counts && shards[s].pieces[p].count > 0) {
        const Piece& piece = shards[s].pieces[p];
        parts[{piece.name, piece.offset, piece.begin}] = {s, p};
      }
  const JobConfig& job = client_.job();
  const auto is_trained = [&](const Piece& piece) {
    return parts.contains({piece.name, piece.offset, piece.begin});
  };
  for (TableId table = 0; table < job.tables.size(); ++table) {
    const auto& pieces = job.tables[table].pieces;
    if (job.tables[table].rank != static_cast<uint32_t>(rank_) || pieces.empty()) continue;
    if (holds_buffers(job.tables[table])) continue;
    if (!table_ || is_trained(pieces.front())) table_ = table;  // of several, that of this module
  }
  const std::size_t wanted = table_ ? job.tables[*table_].pieces.size() : 0;
  core::check(
      wanted == parts.size(),
      "ServerParallel: rank {} of this worker trains {} pieces of parameters, but its table "
      "has {}; give all processes the same model",
      rank_, parts.size(), wanted);
  if (!table_) return;
  const TableConfig& config = job.tables[*table_];
  const auto begins = piece_begins(config);
  for (std::size_t i = 0; i < config.pieces.size(); ++i) {
    const Piece& piece = config.pieces[i];
    const auto found = parts.find({piece.name, piece.offset, piece.begin});
    core::check(
        found != parts.end() && shards[found->second.first].pieces[found->second.second] == piece,
        "ServerParallel: table '{}' has a piece of '{}' that this rank does not train; give "
        "all processes the same model",
        config.name, piece.name);
    places_.push_back(
        {found->second.first, found->second.second, static_cast<int64_t>(begins[i]), piece.count});
  }
  take_memory();
}

void PushReducer::take_memory() {
  if (!table_) return;
  const TableConfig& config = client_.job().tables[*table_];
  const auto type = scalar_type_of(config.type);
  memory_ = client_.arena()->take(config.elems * c10::elementSize(type));
  gradients_ = at::from_blob(memory_.get(), {static_cast<int64_t>(config.elems)}, type);
  gradients_.zero_();
}

void PushReducer::end_step(double weight) {
  inner_->end_step(weight);
  const at::NoGradGuard guard;
  for (const auto& [shard, part, begin, count] : places_) {
    const parallel::ParameterShard& own = attached_->shards()[shard];
    at::Tensor to = gradients_.narrow(0, begin, count);
    const at::Tensor& gradient = own.gradient();
    if (!gradient.defined()) {
      to.zero_();
      continue;
    }
    const at::Tensor values = own.part(gradient, part);
    to.view(values.sizes()).copy_(values);
  }
}

Client::Pending PushReducer::push(Client::Operation operation, const PushNumbers& numbers,
                                  TrainingStep* step) {
  const double parts = numbers.parts > 0 ? numbers.parts : client_.job().workers;
  const double divisor = numbers.divisor * parts;
  operation.push = true;
  operation.weight = numbers.weight;
  operation.loss = numbers.loss;
  operation.divisor = divisor > 0 && std::isfinite(divisor) ? divisor : 1;
  operation.rate = numbers.rate;
  if (numbers.weight != 0)
    operation.values = Payload(memory_, {static_cast<const char*>(memory_.get()),
                                         static_cast<size_t>(gradients_.nbytes())});
  if (step == nullptr) return client_.start(std::move(operation));
  step->weight = operation.weight;
  step->loss = operation.loss;
  step->divisor = operation.divisor;
  step->rate = operation.rate;
  return step->push(std::move(operation), operation.weight);
}

}  // namespace trireme::ps
