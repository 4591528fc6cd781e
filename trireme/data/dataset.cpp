#include "trireme/data/dataset.h"

#include <ATen/ops/cat.h>

#include <vector>

#include "trireme/core/error.h"

namespace trireme::data {

Sample Dataset::get_positions(int64_t index, std::optional<int64_t> epoch,
                              const Positions& positions) const {
  const Sample whole = epoch ? get_in_epoch(index, *epoch) : get(index);
  const auto pick = [&](const at::Tensor& all) {
    if (!all.defined()) return all;
    core::check(
        all.dim() > 0 && all.size(0) == positions.whole(),
        "sample {} of the dataset has {} positions, but its sequences are cut as ones of {}", index,
        all.dim() == 0 ? 0 : all.size(0), positions.whole());
    std::vector<at::Tensor> parts = {all.narrow(0, 0, 0)};
    for (const auto& [begin, count] : positions.ranges())
      parts.push_back(all.narrow(0, begin, count));
    return at::cat(parts);
  };
  return {pick(whole.input), pick(whole.target), pick(whole.documents)};
}

}  // namespace trireme::data
