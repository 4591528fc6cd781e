#include <algorithm>

#include "trireme/pipeline/families.h"

namespace trireme::pipeline {

// ZB-H1 (Qi et al. 2023): other ranks wait only for the input half of a backward, so the weight
// half is postponed to fill idle time. Rank r postpones r of them; at most P micro-batches are in
// flight, as in 1F1B.
//
//     rank 0  F0 F1 F2 ..... I0 W0 F3 I1 W1 I2 W2 I3 W3
//     rank 1  .. F0 F1 .. I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
//     rank 2  ..... F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
Schedule make_zb_h1(Shape shape) {
  Schedule schedule = in_a_loop(shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    Program& program = schedule.programs[static_cast<std::size_t>(rank)];
    const int warmup = warm_up(program, rank, shape);
    for (int micro = 0; micro < shape.micros + rank; ++micro) {
      if (micro < shape.micros) {
        if (warmup + micro < shape.micros) program.push_back({rank, Act::Forward, warmup + micro});
        program.push_back({rank, Act::BackwardInput, micro});
      }
      if (micro >= rank) program.push_back({rank, Act::BackwardWeight, micro - rank});
    }
  }
  return schedule;
}

namespace {

/// Writes the actions of one stage of a rank; knows the next micro-batch of each act.
struct StageWriter {
  Program& program;
  int stage;
  int forwards = 0, inputs = 0, weights = 0;

  void forward() { program.push_back({stage, Act::Forward, forwards++}); }
  void input() { program.push_back({stage, Act::BackwardInput, inputs++}); }
  void weight() { program.push_back({stage, Act::BackwardWeight, weights++}); }
  void backward() {
    input();
    weight();
  }
};

void make_zb_v_program(Program& program, int rank, int ranks, int micros) {
  StageWriter down{program, rank}, up{program, 2 * ranks - 1 - rank};
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) down.forward();
  for (int i = 0; i < rank; ++i) {
    up.forward();
    down.forward();
  }
  for (int i = 0; i < ranks - rank; ++i) {
    up.forward();
    up.backward();
  }
  while (up.forwards < micros) {
    if (down.forwards < micros) down.forward();
    down.backward();
    up.forward();
    up.backward();
  }
  for (int i = 0; i < rank; ++i) {
    down.input();
    up.input();
  }
  for (int i = 0; i < ranks - rank; ++i) down.backward();
  while (up.weights < micros) up.weight();
  while (down.weights < micros) down.weight();
}

}  // namespace

// ZB-V (Qi et al. 2024): the stages go down the ranks and up again, so that rank 0 has the first
// and the last. Where F, I and W take the same time, no rank idles between its first and last
// action. P = 2, M = 3: stages 0 and 3 on rank 0, 1 and 2 on rank 1.
//
//     rank 0  0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
//     rank 1  ... 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
//
// Warm-up takes 2P - 1 micro-batches. With fewer, the actions of the missing ones are left out.
Schedule make_zb_v(Shape shape) {
  Schedule schedule = in_a_v(shape);
  const int micros = std::max(shape.micros, 2 * shape.ranks - 1);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    Program& program = schedule.programs[static_cast<std::size_t>(rank)];
    make_zb_v_program(program, rank, shape.ranks, micros);
    std::erase_if(program, [&](const Action& action) { return action.micro >= shape.micros; });
  }
  return schedule;
}

}  // namespace trireme::pipeline
