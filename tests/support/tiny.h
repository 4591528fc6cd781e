#pragma once

#include <memory>
#include <vector>

#include "trireme/mesh/mesh.h"
#include "trireme/nn/flow.h"

namespace trireme::test {

/// Where rows with these samples stand.
inline std::shared_ptr<const nn::Where> where(std::vector<int64_t> ids, int64_t step = 3,
                                              int64_t begin = 0) {
  return std::make_shared<nn::Where>(nn::Where{
      .step = step, .micro = 0, .sample_ids = std::move(ids), .positions = Positions::from(begin)});
}

}  // namespace trireme::test
