#pragma once

#include <torch/torch.h>

#include <functional>
#include <optional>
#include <string>

#include "support/backends.h"
#include "trireme/checkpoint/resume.h"
#include "trireme/checkpoint/saver.h"
#include "trireme/layout/layout.h"

namespace trireme::test {

/// The values of tensor `number` of the state after `step`: every element of every step another.
inline at::Tensor values_of(int64_t step, int64_t number, const std::vector<int64_t>& shape) {
  const int64_t numel = Box{{}, shape}.numel();
  return (torch::arange(numel, torch::kFloat) + static_cast<float>(1000 * number) +
          static_cast<float>(step) / 8)
      .reshape(shape);
}

/// Three tensors as a mesh holds them, one of each kind: 'a' [500, 700], more than a block, whole
/// on every rank; 'b' [1000] cut flat by shard; 'c' [6, 10] cut in columns over tensor.
inline checkpoint::State state_of(const Mesh& mesh, int64_t step) {
  checkpoint::State state;
  state.items.push_back(checkpoint::whole("a", values_of(step, 0, {500, 700})));
  const Layout flat({1000}), columns({6, 10}, {{Axis::Tensor, 1}});
  const at::Tensor b = values_of(step, 1, {1000}), c = values_of(step, 2, {6, 10});
  for (const Reduction& one :
       reductions_of(flat, {}, mesh.degrees(), mesh.coord(), {.sharding = Sharding::Parameters}))
    if (one.kept.count > 0)
      state.items.push_back({piece_of("b", flat, one),
                             b.narrow(0, one.kept.begin, one.kept.count).clone(), one.same});
  for (const Reduction& one : reductions_of(columns, {}, mesh.degrees(), mesh.coord(), {})) {
    const Box& box = one.box.box;
    state.items.push_back({piece_of("c", columns, one),
                           c.narrow(1, box.offset[1], box.shape[1]).contiguous(), one.same});
  }
  state.extra["step"] = step;
  return state;
}

/// Saves the state after `step` by the ranks of a mesh; the problem that rank 0 has, if any.
inline std::optional<std::string> save_state(const std::string& folder, const Degrees& degrees,
                                             int64_t step, int64_t keep = 1) {
  std::optional<std::string> problem;
  run_world(kThreads, degrees.world(), [&](const comm::Communicator& world) {
    const Mesh mesh(world, degrees);
    checkpoint::Saver saver(folder, mesh, keep);
    saver.save(step, state_of(mesh, step));
    const auto mine = saver.wait();
    if (world.rank() == 0) problem = mine;
    world.barrier();
  });
  return problem;
}

/// Loads the newest by the ranks of a mesh, and compares every value with what it must be; the
/// step, or -1 if there is none.
inline int64_t load_state(const std::string& folder, const Degrees& degrees,
                          const checkpoint::FitCheck& fits = {}) {
  int64_t step = -1;
  run_world(kThreads, degrees.world(), [&](const comm::Communicator& world) {
    const Mesh mesh(world, degrees);
    const checkpoint::State state = state_of(mesh, 0);
    const auto loaded = checkpoint::load_newest(folder, state, world, fits);
    if (!loaded) return;
    const checkpoint::State expected = state_of(mesh, loaded->index().step);
    for (std::size_t i = 0; i < state.items.size(); ++i)
      EXPECT_TRUE(state.items[i].tensor.equal(expected.items[i].tensor))
          << state.items[i].piece.name << " of step " << loaded->index().step;
    EXPECT_EQ(loaded->index().extra, expected.extra);
    if (world.rank() == 0) step = loaded->index().step;
  });
  return step;
}

}  // namespace trireme::test
