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

constexpr int64_t kDefined = 1, kNeedsGradient = 2, kNarrow = 4;
constexpr int kHeaderTag = -1;  // no Flow has it

void write(std::vector<int64_t>& to, const at::Tensor& tensor, const Narrow& narrow) {
  const bool defined = tensor.defined();
  to.push_back((defined ? kDefined : 0) | (defined && tensor.requires_grad() ? kNeedsGradient : 0) |
               (defined && narrow.takes(tensor.scalar_type()) ? kNarrow : 0));
  if (!defined) return;
  to.push_back(static_cast<int64_t>(tensor.scalar_type()));
  to.push_back(tensor.dim());
  to.insert(to.end(), tensor.sizes().begin(), tensor.sizes().end());
}

/// Open positions are -1 and their first, others their whole, the number of ranges, and these.
void write(std::vector<int64_t>& to, const Positions& positions) {
  if (positions.is_open()) {
    to.insert(to.end(), {-1, positions.first()});
    return;
  }
  to.insert(to.end(), {positions.whole(), static_cast<int64_t>(positions.ranges().size())});
  for (const Range& one : positions.ranges()) to.insert(to.end(), {one.begin, one.count});
}

void write(std::vector<int64_t>& to, const nn::Where* where) {
  to.push_back(where != nullptr ? 1 : 0);
  if (where == nullptr) return;
  to.insert(to.end(), {where->step, where->micro, where->cut_from ? 1 : 0});
  write(to, where->positions);
  if (where->cut_from) write(to, *where->cut_from);
  to.push_back(static_cast<int64_t>(where->sample_ids.size()));
  to.insert(to.end(), where->sample_ids.begin(), where->sample_ids.end());
}

std::vector<int64_t> describe_flow(const nn::Flow& flow, int tag, const Narrow& narrow) {
  std::vector<int64_t> items = {kMark, 0, tag, static_cast<int64_t>(flow.tensors.size())};
  for (const at::Tensor& one : flow.tensors) write(items, one, narrow);
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

Positions read_positions(Reader& in) {
  const int64_t whole = in.next(), count = in.next();
  if (whole < 0) return Positions::from(count);
  const std::vector<int64_t> numbers = in.next(2 * count);
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < numbers.size(); i += 2)
    ranges.push_back({numbers[i], numbers[i + 1]});
  return {std::move(ranges), whole};
}

std::shared_ptr<const nn::Where> read_where(Reader& in) {
  if (in.next() == 0) return nullptr;
  auto where = std::make_shared<nn::Where>();
  where->step = in.next();
  where->micro = in.next();
  const bool is_cut = in.next() != 0;
  where->positions = read_positions(in);
  if (is_cut) where->cut_from = read_positions(in);
  where->sample_ids = in.next(in.next());
  return where;
}

}  // namespace

/// A Flow whose header was read.
struct Transfers::Arrival {
  nn::Flow flow;
  std::vector<bool> needs_gradient;
  std::vector<comm::Work> works;
  std::vector<at::Tensor> encoded;  // of each tensor; undefined: it travels as it is
};

/// What comes from one rank.
struct Transfers::Sender {
  struct Header {
    at::Tensor items = at::empty({kHeaderItems}, at::kLong);
    comm::Work work = {};
  };
  std::deque<Header> headers;                   // posted and not yet read
  std::map<int, std::deque<Arrival>> arrivals;  // by tag
  std::map<int, int> expected;                  // by tag: expected and not yet taken
  int64_t wanted = 0, posted = 0;               // Flows, headers: in all
};

Transfers::Transfers(comm::Communicator pipe, c10::Device device, Narrow narrow)
    : pipe_(std::move(pipe)), device_(device), narrow_(std::move(narrow)) {}

Transfers::~Transfers() = default;

void Transfers::send(const nn::Flow& flow, int to, int tag) {
  const std::vector<int64_t> items = describe_flow(flow, tag, narrow_);
  at::Tensor header = at::empty({kHeaderItems}, at::kLong);
  const auto count = static_cast<int64_t>(items.size());
  std::copy_n(items.begin(), std::min(count, kHeaderItems), header.data_ptr<int64_t>());
  sending_.push_back(pipe_.send(header, to, kHeaderTag));
  if (count > kHeaderItems)
    sending_.push_back(pipe_.send(
        at::tensor(at::ArrayRef<int64_t>(items).slice(static_cast<std::size_t>(kHeaderItems)),
                   at::kLong),
        to, tag));
  for (const at::Tensor& one : flow.tensors) {
    if (!one.defined() || one.numel() == 0) continue;
    const bool narrow = narrow_.takes(one.scalar_type());
    sending_.push_back(
        pipe_.send(narrow ? narrow_.encode(one, "transfer") : one.detach().contiguous(), to, tag));
  }
}

void Transfers::post_header(int from, Sender& sender) {
  ++sender.posted;
  auto& header = sender.headers.emplace_back();
  header.work = pipe_.recv(header.items, from, kHeaderTag);
}

void Transfers::expect(int from, int tag) {
  Sender& sender = senders_[from];
  ++sender.expected[tag];
  // Its header may have been read already, on the way to another.
  if (++sender.wanted > sender.posted) post_header(from, sender);
}

/// Waits for the next header of that rank, reads it, and posts the receives of its tensors.
void Transfers::read_header(int from, Sender& sender) {
  if (sender.headers.empty()) post_header(from, sender);
  sender.headers.front().work.synchronize();
  const at::Tensor header = sender.headers.front().items;
  sender.headers.pop_front();
  const int64_t* begin = header.data_ptr<int64_t>();
  const int64_t count = begin[1];
  if (begin[0] != kMark || count < 4 || count > kMostItems)
    throw CommError(fmt::format("rank {} of '{}' sent something that is not a pipeline's header",
                                from, pipe_.name()));
  const int tag = static_cast<int>(begin[2]);
  std::vector<int64_t> items(begin, begin + std::min(count, kHeaderItems));
  if (count > kHeaderItems) {
    at::Tensor more = at::empty({count - kHeaderItems}, at::kLong);
    pipe_.recv(more, from, tag).synchronize();
    items.insert(items.end(), more.data_ptr<int64_t>(), more.data_ptr<int64_t>() + more.numel());
  }
  Reader in(items);
  in.next(3);
  std::vector<at::Tensor> tensors;
  std::vector<bool> needs_gradient;
  std::vector<comm::Work> works;
  std::vector<at::Tensor> encoded;
  for (int64_t left = in.next(); left > 0; --left) {
    const int64_t flags = in.next();
    needs_gradient.push_back((flags & kNeedsGradient) != 0);
    tensors.emplace_back();
    encoded.emplace_back();
    if ((flags & kDefined) == 0) continue;
    const auto dtype = static_cast<at::ScalarType>(in.next());
    const bool narrow = (flags & kNarrow) != 0;
    if (narrow != narrow_.takes(dtype))
      throw CommError(fmt::format(
          "rank {} of '{}' and this rank disagree on whether tensors travel in fewer bytes", from,
          pipe_.name()));
    tensors.back() =
        at::empty(in.next(in.next()), at::TensorOptions().dtype(dtype).device(device_));
    if (tensors.back().numel() == 0) continue;
    if (narrow)
      encoded.back() = at::empty({narrow_.num_bytes(tensors.back().numel(), dtype)}, at::kByte);
    works.push_back(pipe_.recv(narrow ? encoded.back() : tensors.back(), from, tag));
  }
  sender.arrivals[tag].push_back({nn::Flow(std::move(tensors), read_where(in)),
                                  std::move(needs_gradient), std::move(works), std::move(encoded)});
}

nn::Flow Transfers::take(int from, int tag) {
  Sender& sender = senders_[from];
  if (sender.expected[tag] == 0) expect(from, tag);
  if (--sender.expected[tag] == 0) sender.expected.erase(tag);
  while (sender.arrivals[tag].empty()) read_header(from, sender);
  auto& arrivals = sender.arrivals[tag];
  Arrival arrival = std::move(arrivals.front());
  arrivals.pop_front();
  if (arrivals.empty()) sender.arrivals.erase(tag);
  for (comm::Work& work : arrival.works) work.wait();
  for (std::size_t i = 0; i < arrival.flow.tensors.size(); ++i)
    if (arrival.encoded[i].defined()) narrow_.decode(arrival.encoded[i], arrival.flow.tensors[i]);
  for (std::size_t i = 0; i < arrival.flow.tensors.size(); ++i)
    if (arrival.needs_gradient[i]) arrival.flow.tensors[i].requires_grad_();
  return std::move(arrival.flow);
}

void Transfers::advance() {
  for (auto& [from, sender] : senders_)
    while (!sender.headers.empty() && sender.headers.front().work.done()) read_header(from, sender);
  std::erase_if(sending_, [](const comm::Work& work) { return work.done(); });
}

void Transfers::finish_sends() {
  for (comm::Work& work : sending_) work.wait();
  sending_.clear();
}

}  // namespace trireme::parallel
