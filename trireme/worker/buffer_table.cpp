#include "trireme/worker/buffer_table.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>

#include "trireme/core/error.h"
#include "trireme/format/dtype.h"
#include "trireme/format/load.h"
#include "trireme/parallel/replicas.h"

namespace trireme::ps {

namespace {

const char* stored_as(const std::string& name, at::ScalarType type) {
  switch (type) {
    case at::kDouble: return "F64";
    case at::kFloat: return "F32";
    case at::kLong: return "I64";
    case at::kInt: return "I32";
    case at::kShort: return "I16";
    case at::kChar: return "I8";
    case at::kByte: return "U8";
    case at::kBool: return "BOOL";
    default: break;
  }
  throw MisuseError(fmt::format(
      "buffer '{}' is {}, which servers do not keep; make it float32, float64 or an integer", name,
      c10::toString(type)));
}

/// The values that buffers have when the job begins, copied, because training changes them.
class BufferValues final : public FirstValues {
 public:
  void add(const std::string& name, const at::Tensor& buffer) {
    buffers_[name] = buffer.detach().cpu().to(at::kDouble).reshape({-1}).clone();
  }
  void fill(const Piece& piece, std::span<float> values) const override {
    std::ranges::copy(part_of(piece), values.begin());
  }
  void fill(const Piece& piece, std::span<double> values) const override {
    std::ranges::copy(part_of(piece), values.begin());
  }

 private:
  std::span<const double> part_of(const Piece& piece) const {
    return {buffers_.at(piece.name).const_data_ptr<double>() + piece.begin,
            static_cast<std::size_t>(piece.count)};
  }
  std::map<std::string, at::Tensor> buffers_;
};

}  // namespace

bool holds_buffers(const TableConfig& table) {
  return !table.pieces.empty() && table.pieces.front().name.starts_with(kBufferPrefix);
}

/// All of them are float64 on the servers, which has every float32 and every count below 2^53.
TableConfig buffer_table(const torch::nn::Module& module, const std::string& name) {
  TableConfig table{.name = name, .type = ValueType::Float64, .rule = make_latest()};
  const auto values = std::make_shared<BufferValues>();
  std::vector<Piece> pieces;
  for (const auto& item : module.named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (buffer.numel() == 0) continue;
    const std::string full_name = kBufferPrefix + item.key();
    pieces.push_back(format::whole_piece(full_name, buffer.sizes().vec()));
    table.stored_as.emplace_back(stored_as(item.key(), buffer.scalar_type()));
    values->add(full_name, buffer);
  }
  lay_out(table, std::move(pieces));
  table.first_values = values;
  return table;
}

ServedBuffers::ServedBuffers(const parallel::Attached& attached, const Client& client)
    : attached_(attached), job_(client.job()) {
  if (std::ranges::none_of(job_.tables, holds_buffers)) return;
  const Mesh& mesh = attached.mesh();
  const parallel::Buffers own = attached.buffers();
  // The ranks of a stage are in the order of the world's, and the first of them has the table.
  if (mesh.world().size() > 1)
    ranks_ = mesh.world().split("buffers", mesh.coord(Axis::Pipe), mesh.world().rank());
  if (own.empty() || (ranks_ && ranks_->rank() != 0)) return;
  const auto rank = static_cast<uint32_t>(mesh.world().rank());
  for (TableId table = 0; table < job_.tables.size(); ++table) {
    const TableConfig& config = job_.tables[table];
    if (config.rank != rank || !holds_buffers(config)) continue;
    const bool is_own = std::ranges::any_of(
        own, [&](const auto& one) { return kBufferPrefix + one.first == config.pieces[0].name; });
    if (!is_own) continue;  // of another module
    table_ = table;
    bind(config);
    break;
  }
}

void ServedBuffers::bind(const TableConfig& table) {
  std::map<std::string, at::Tensor> own;
  for (const auto& [name, buffer] : attached_.buffers())
    if (buffer.numel() > 0) own[kBufferPrefix + name] = buffer;
  const auto begins = piece_begins(table);
  for (std::size_t i = 0; i < table.pieces.size(); ++i) {
    const Piece& piece = table.pieces[i];
    const auto found = own.find(piece.name);
    core::check(
        found != own.end() && found->second.sizes() == at::IntArrayRef(piece.whole) &&
            stored_as(piece.name, found->second.scalar_type()) == table.stored_as[i],
        "ServerParallel: table '{}' has '{}' as {} {}, which this rank does not have so; give all "
        "processes the same model",
        table.name, piece.name, table.stored_as[i], format::format_shape(piece.whole));
    places_.push_back({found->second, static_cast<int64_t>(begins[i])});
  }
  core::check(own.size() == places_.size(),
              "ServerParallel: this rank has {} buffers, but table '{}' has {}; give all processes "
              "the same model",
              own.size(), table.name, places_.size());
}

/// In lockstep the first worker of a clock alone says what comes of its buffers, as the first rank
/// does under DataParallel.
Client::Operation ServedBuffers::push(Client::Operation operation, double weight) const {
  const bool leads = !job_.in_lockstep(*table_) || operation.batch % job_.workers == 0;
  operation.table = *table_;
  operation.push = true;
  operation.weight = leads ? weight : 0;
  if (operation.weight == 0) return operation;
  const at::NoGradGuard guard;
  const TableConfig& config = job_.tables[*table_];
  std::string bytes(config.elems * sizeof(double), '\0');
  const at::Tensor all =
      at::from_blob(bytes.data(), {static_cast<int64_t>(config.elems)}, at::kDouble);
  for (const auto& [buffer, begin] : places_)
    all.narrow(0, begin, buffer.numel()).view(buffer.sizes()).copy_(buffer);
  operation.values = std::move(bytes);
  return operation;
}

void ServedBuffers::take(const Client::Result& result) {
  const at::NoGradGuard guard;
  const at::Tensor all = at::empty({static_cast<int64_t>(job_.tables[*table_].elems)}, at::kDouble);
  for (const ClientNode::PulledBlock& block : result.blocks)
    std::copy_n(block.values.data(), block.values.size(),
                static_cast<char*>(all.data_ptr()) + block.begin * sizeof(double));
  for (const auto& [buffer, begin] : places_) {
    at::Tensor to = buffer;
    to.copy_(all.narrow(0, begin, buffer.numel()).view(buffer.sizes()));
  }
}

void ServedBuffers::spread() const {
  if (!ranks_) return;
  for (const torch::nn::Module* module : attached_.modules())
    parallel::broadcast_buffers(*module, *ranks_);
}

}  // namespace trireme::ps
