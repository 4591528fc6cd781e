#include "trireme/pipeline/families.h"

namespace trireme::pipeline {

// GPipe (Huang et al. 2019): all forwards, then all backwards. Every micro-batch stays in flight.
//
//     rank 0  F0 F1 F2 F3 ................. B0--- B1--- B2--- B3---
//     rank 1  .. F0 F1 F2 F3 ........ B0--- B1--- B2--- B3--- ......
//     rank 2  ..... F0 F1 F2 F3 B0--- B1--- B2--- B3--- ............
Schedule make_gpipe(Shape shape) {
  Schedule schedule = in_a_loop(shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    Program& program = schedule.programs[static_cast<std::size_t>(rank)];
    for (const Act act : {Act::Forward, Act::Backward})
      for (int micro = 0; micro < shape.micros; ++micro) program.push_back({rank, act, micro});
  }
  return schedule;
}

// 1F1B (PipeDream-Flush, Narayanan et al. 2021): warm-up fills the pipe, then one forward, one
// backward, then the tail drains it. As fast as GPipe, but rank r has at most P - r micro-batches
// in flight.
//
//     rank 0  F0 F1 F2 ........... B0--- F3 B1--- .. B2--- .. B3---
//     rank 1  .. F0 F1 ..... B0--- F2 B1--- F3 B2--- .. B3--- ......
//     rank 2  ..... F0 B0--- F1 B1--- F2 B2--- F3 B3--- ............
Schedule make_1f1b(Shape shape) {
  Schedule schedule = in_a_loop(shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    Program& program = schedule.programs[static_cast<std::size_t>(rank)];
    const int warmup = warm_up(program, rank, shape);
    for (int micro = warmup; micro < shape.micros; ++micro) {
      program.push_back({rank, Act::Forward, micro});
      program.push_back({rank, Act::Backward, micro - warmup});
    }
    for (int micro = shape.micros - warmup; micro < shape.micros; ++micro)
      program.push_back({rank, Act::Backward, micro});
  }
  return schedule;
}

}  // namespace trireme::pipeline
