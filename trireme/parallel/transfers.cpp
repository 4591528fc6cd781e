#include "trireme/parallel/transfers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <optional>

#include "trireme/core/error.h"

namespace trireme::parallel {

namespace {

constexpr int64_t kHeaderItems = 128;
constexpr int64_t kMostItems = 1 << 24;  // no header is longer: something else was received
constexpr int64_t kMark = 0x54524952454d45;

constexpr int64_t kDefined = 1, kNeedsGradient = 2;

void write(std::vector<int64_t>& to, const at::Tensor& tensor) {
  const bool defined = tensor.defined();
  to.push_back((defined ? kDefined : 0) | (defined && tensor.requires_grad() ? kNeedsGradient : 0));
  if (!defined) return;
  to.push_back(static_cast<int64_t>(tensor.scalar_type()));
  to.push_back(tensor.dim());
  to.insert(to.end(), tensor.sizes().begin(), tensor.sizes().end());
}

void write(std::vector<int64_t>& to, const nn::Where* where) {
  to.push_back(where != nullptr ? 1 : 0);
  if (where == nullptr) return;
  to.insert(to.end(), {where->step, where->micro, where->seq_begin, where->cut_from ? 1 : 0});
  if (where->cut_from) to.insert(to.end(), {where->cut_from->begin, where->cut_from->count});
  to.push_back(static_cast<int64_t>(where->sample_ids.size()));
  to.insert(to.end(), where->sample_ids.begin(), where->sample_ids.end());
}

std::vector<int64_t> describe_flow(const nn::Flow& flow) {
  std::vector<int64_t> items = {kMark, 0, static_cast<int64_t>(flow.tensors.size())};
  for (const at::Tensor& one : flow.tensors) write(items, one);
  write(items, flow.where.get());
  items[1] = static_cast<int64_t>(items.size());
  return items;
}

/// Reads numbers one after the other; throws at the end.
class Reader {
 public:
  explicit Reader(const std::vector<int64_t>& items) : items_(items) {}
  int64_t next() {
    if (at_ >= items_.size()) throw CommError("a pipeline's header ends too early");
    return items_[at_++];
  }
  std::vector<int64_t> next(int64_t count) {
    if (count < 0 || static_cast<std::size_t>(count) > items_.size() - at_)
      throw CommError("a pipeline's header ends too early");
    std::vector<int64_t> some(items_.begin() + static_cast<std::ptrdiff_t>(at_),
                              items_.begin() + static_cast<std::ptrdiff_t>(at_) + count);
    at_ += static_cast<std::size_t>(count);
    return some;
  }

 private:
  const std::vector<int64_t>& items_;
  std::size_t at_ = 0;
};

std::shared_ptr<const nn::Where> read_where(Reader& in) {
  if (in.next() == 0) return nullptr;
  auto where = std::make_shared<nn::Where>();
  where->step = in.next();
  where->micro = in.next();
  where->seq_begin = in.next();
  if (in.next() != 0) {
    const int64_t begin = in.next();
    where->cut_from = Range{begin, in.next()};
  }
  where->sample_ids = in.next(in.next());
  return where;
}

}  // namespace

struct Transfers::Arrival {
  at::Tensor header = at::empty({kHeaderItems}, at::kLong);
  comm::Work header_work = {};
  std::vector<comm::Work> works = {};
  std::optional<nn::Flow> flow = {};  // once the header was read
  std::vector<bool> needs_gradient = {};
};

Transfers::Transfers(comm::Communicator pipe, c10::Device device)
    : pipe_(std::move(pipe)), device_(device) {}

Transfers::~Transfers() = default;

void Transfers::send(const nn::Flow& flow, int to, int tag) {
  const std::vector<int64_t> items = describe_flow(flow);
  at::Tensor header = at::empty({kHeaderItems}, at::kLong);
  const auto count = static_cast<int64_t>(items.size());
  std::copy_n(items.begin(), std::min(count, kHeaderItems), header.data_ptr<int64_t>());
  sending_.push_back(pipe_.send(header, to, tag));
  if (count > kHeaderItems)
    sending_.push_back(pipe_.send(
        at::tensor(at::ArrayRef<int64_t>(items).slice(static_cast<std::size_t>(kHeaderItems)),
                   at::kLong),
        to, tag));
  for (const at::Tensor& one : flow.tensors)
    if (one.defined() && one.numel() > 0)
      sending_.push_back(pipe_.send(one.detach().contiguous(), to, tag));
}

void Transfers::expect(int from, int tag) {
  Arrival& arrival = arrivals_[{from, tag}].emplace_back();
  arrival.header_work = pipe_.recv(arrival.header, from, tag);
}

/// Reads a header that has arrived, and posts the receives of its tensors.
void Transfers::read_header(Arrival& arrival, int from, int tag) {
  arrival.header_work.synchronize();
  const int64_t* begin = arrival.header.data_ptr<int64_t>();
  const int64_t count = begin[1];
  if (begin[0] != kMark || count < 3 || count > kMostItems)
    throw CommError(fmt::format("rank {} of '{}' sent something that is not a pipeline's header",
                                from, pipe_.name()));
  std::vector<int64_t> items(begin, begin + std::min(count, kHeaderItems));
  if (count > kHeaderItems) {
    at::Tensor more = at::empty({count - kHeaderItems}, at::kLong);
    pipe_.recv(more, from, tag).synchronize();
    items.insert(items.end(), more.data_ptr<int64_t>(), more.data_ptr<int64_t>() + more.numel());
  }
  Reader in(items);
  in.next(2);
  std::vector<at::Tensor> tensors;
  for (int64_t left = in.next(); left > 0; --left) {
    const int64_t flags = in.next();
    arrival.needs_gradient.push_back((flags & kNeedsGradient) != 0);
    tensors.emplace_back();
    if ((flags & kDefined) == 0) continue;
    const auto dtype = static_cast<at::ScalarType>(in.next());
    tensors.back() =
        at::empty(in.next(in.next()), at::TensorOptions().dtype(dtype).device(device_));
    if (tensors.back().numel() > 0) arrival.works.push_back(pipe_.recv(tensors.back(), from, tag));
  }
  arrival.flow.emplace(std::move(tensors), read_where(in));
}

nn::Flow Transfers::take(int from, int tag) {
  auto& waiting = arrivals_[{from, tag}];
  if (waiting.empty()) expect(from, tag);
  Arrival& arrival = waiting.front();
  if (!arrival.flow) read_header(arrival, from, tag);
  for (comm::Work& work : arrival.works) work.wait();
  nn::Flow flow = std::move(*arrival.flow);
  for (std::size_t i = 0; i < flow.tensors.size(); ++i)
    if (arrival.needs_gradient[i]) flow.tensors[i].requires_grad_();
  waiting.pop_front();
  if (waiting.empty()) arrivals_.erase({from, tag});
  return flow;
}

void Transfers::advance() {
  for (auto& [key, waiting] : arrivals_)
    if (!waiting.front().flow && waiting.front().header_work.done())
      read_header(waiting.front(), key.first, key.second);
  std::erase_if(sending_, [](const comm::Work& work) { return work.done(); });
}

void Transfers::finish_sends() {
  for (comm::Work& work : sending_) work.synchronize();
  sending_.clear();
}

}  // namespace trireme::parallel
