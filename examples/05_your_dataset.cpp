// Your own dataset is two functions. The library shuffles the samples, distributes them over the
// ranks, reads ahead and resumes exactly. This example repeats the second half of a run: to resume,
// it needs only the number of the first batch.
//
//   trireme run -n 2 build/bin/05_your_dataset
#include <torch/torch.h>

#include <iostream>

#include "trireme/trireme.h"

using namespace trireme;

/// The squares of numbers.
class Squares : public data::Dataset {
 public:
  int64_t size() const override { return 1000; }
  data::Sample get(int64_t index) const override {
    const float x = static_cast<float>(index) / 1000;
    return {torch::tensor({x}), torch::tensor({x * x})};
  }
};

/// The samples that this rank gets in batches [first, last).
std::vector<int64_t> samples_of(const comm::Communicator& world, int64_t first, int64_t last) {
  const auto squares = std::make_shared<Squares>();
  const data::Order order(/*seed=*/3, squares->size(), /*global_batch=*/64);
  data::Loader loader(squares, order, world.rank(), world.size(), first);
  std::vector<int64_t> seen;
  for (int64_t number = first; number < last; ++number) {
    const data::Batch batch = loader.next();
    seen.insert(seen.end(), batch.sample_ids.begin(), batch.sample_ids.end());
  }
  return seen;
}

int main() {
  return guard([] {
    const auto world = init();
    const auto whole = samples_of(world, 0, 32), resumed = samples_of(world, 16, 32);
    const bool same = std::equal(resumed.rbegin(), resumed.rend(), whole.rbegin());

    // Two epochs: every sample twice, over all ranks.
    auto count = torch::zeros({1000}, torch::kLong);
    for (const int64_t id : whole) count[id] += 1;
    world.all_reduce(count).wait();
    const bool each_twice = (count == 2).all().item<bool>();
    if (world.rank() == 0)
      std::cout << "1000 samples, 16 batches an epoch; every sample was seen "
                << (each_twice ? "once an epoch" : "a different number of times")
                << "; resuming gave " << (same ? "the same samples" : "different samples")
                << std::endl;
    return same && each_twice ? 0 : 1;
  });
}
