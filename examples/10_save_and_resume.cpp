// Saves and resumes in your own training loop: three lines. Kill it at any moment and start it
// again: it continues, and every loss is the same, bit for bit. It also continues on another number
// of ranks.
//
//   trireme run -n 2 build/bin/10_save_and_resume runs/squares
//   trireme ckpt ls runs/squares
#include <torch/torch.h>

#include <iomanip>
#include <iostream>

#include "trireme/trireme.h"

using namespace trireme;

constexpr int64_t kSteps = 300;

/// The squares of numbers.
class Squares : public data::Dataset {
 public:
  int64_t size() const override { return 1000; }
  data::Sample get(int64_t index) const override {
    const float x = static_cast<float>(index) / 500 - 1;
    return {torch::tensor({x}), torch::tensor({x * x})};
  }
};

int main(int argc, char** argv) {
  return guard([&] {
    const auto world = init();
    torch::manual_seed(1);
    torch::nn::Sequential model(torch::nn::Linear(1, 32), torch::nn::Tanh(),
                                torch::nn::Linear(32, 1));
    parallel::DataParallel replicas(*model, world);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));

    train::Checkpoints checkpoints(argc > 1 ? argv[1] : "runs/squares", replicas, optimizer);  // 1
    int64_t step = checkpoints.resume();  // 2: 0 in a new run
    if (world.rank() == 0 && step > 0) std::cout << "continues from step " << step << std::endl;

    // Batch i belongs to step i: the loader continues where it stopped.
    const auto squares = std::make_shared<Squares>();
    const data::Order order(/*seed=*/3, squares->size(), /*global_batch=*/64);
    data::Loader loader(squares, order, world.rank(), world.size(), step);
    while (step < kSteps) {
      const data::Batch batch = loader.next();
      const auto errors = (model->forward(batch.inputs) - batch.targets).pow(2).sum();
      replicas.backward({errors, batch.inputs.size(0)});
      const auto totals = replicas.finish();
      optimizer.step();
      ++step;
      if (world.rank() == 0)
        std::cout << "step " << step << "  loss " << std::setprecision(17)  // every bit shows
                  << totals.loss / totals.weight << std::endl;
      if (step % 20 == 0) checkpoints.save(step);  // 3: writes in the background
    }
    checkpoints.wait();
  });
}
