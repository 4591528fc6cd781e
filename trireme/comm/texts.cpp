#include "trireme/comm/texts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

namespace trireme::comm {

namespace {

at::Tensor bytes_of(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.data_ptr<uint8_t>());
  return bytes;
}

std::string text_of(const at::Tensor& bytes, int64_t begin, int64_t count) {
  const auto* from = reinterpret_cast<const char*>(bytes.data_ptr<uint8_t>());
  return {from + begin, static_cast<std::size_t>(count)};
}

/// The length of each rank's text.
Rows sizes_of(const Communicator& group, const std::string& mine) {
  at::Tensor own_size = at::empty({1}, at::kLong), sizes = at::zeros({group.size()}, at::kLong);
  *own_size.data_ptr<int64_t>() = static_cast<int64_t>(mine.size());
  group.all_gather(sizes, own_size).wait();
  return {sizes.data_ptr<int64_t>(), sizes.data_ptr<int64_t>() + sizes.numel()};
}

at::Tensor room_for(const Rows& rows) {
  return at::empty({std::accumulate(rows.begin(), rows.end(), int64_t{0})}, at::kByte);
}

std::vector<std::string> texts_of(const at::Tensor& all, const Rows& rows) {
  std::vector<std::string> texts;
  int64_t begin = 0;
  for (const int64_t bytes : rows) {
    texts.push_back(text_of(all, begin, bytes));
    begin += bytes;
  }
  return texts;
}

}  // namespace

std::vector<std::string> all_gather_texts(const Communicator& group, const std::string& mine) {
  const Rows rows = sizes_of(group, mine);
  const at::Tensor all = room_for(rows);
  group.all_gather(all, bytes_of(mine), rows).wait();
  return texts_of(all, rows);
}

std::vector<std::string> gather_texts(const Communicator& group, const std::string& mine,
                                      int root) {
  const Rows rows = sizes_of(group, mine);
  const bool here = group.rank() == root;
  const at::Tensor all = here ? room_for(rows) : at::Tensor();
  group.gather(all, bytes_of(mine), root, rows).wait();
  return here ? texts_of(all, rows) : std::vector<std::string>();
}

std::string broadcast_text(const Communicator& group, const std::string& mine, int root) {
  at::Tensor size = at::empty({1}, at::kLong);
  *size.data_ptr<int64_t>() = static_cast<int64_t>(mine.size());
  group.broadcast(size, root).wait();
  at::Tensor bytes =
      group.rank() == root ? bytes_of(mine) : at::empty({*size.data_ptr<int64_t>()}, at::kByte);
  group.broadcast(bytes, root).wait();
  return text_of(bytes, 0, bytes.numel());
}

}  // namespace trireme::comm
