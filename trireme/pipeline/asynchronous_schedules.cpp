#include "trireme/pipeline/families.h"

namespace trireme::pipeline {

namespace {

/// Adds an update of the stage after every `every` backwards, and after the last one.
Schedule with_updates(Schedule schedule, int every) {
  for (Program& program : schedule.programs) {
    Program updated;
    for (const Action& action : program) {
      updated.push_back(action);
      const int done = action.micro + 1;
      if (completes_backward(action.act) && (done % every == 0 || done == schedule.micros))
        updated.push_back({action.stage, Act::Update});
    }
    program = std::move(updated);
  }
  return schedule;
}

}  // namespace

// PipeDream (Narayanan et al. 2019): never drains between steps. A stage updates its weights after
// every backward (U). For each of the P - r micro-batches in flight it keeps the weights that the
// forward used.
//
//     rank 0  F0 F1 F2 ........... B0---UF3 B1---U.. B2---U.. B3---U
//     rank 1  .. F0 F1 ..... B0---UF2 B1---UF3 B2---U.. B3---U......
//     rank 2  ..... F0 B0---UF1 B1---UF2 B2---UF3 B3---U............
Schedule make_pipedream(Shape shape) {
  return with_updates(make_1f1b(shape), 1);
}

// PipeDream-2BW (Narayanan et al. 2021): gradients of P micro-batches are added up for one update,
// so that two versions of the weights are enough: every micro-batch in flight started with the
// newest version or the one before it.
//
//     rank 0  F0 F1 F2 ........... B0--- F3 B1--- F4 B2---UF5 B3--- .. B4--- .. B5---U
//     rank 1  .. F0 F1 ..... B0--- F2 B1--- F3 B2---UF4 B3--- F5 B4--- .. B5---U......
//     rank 2  ..... F0 B0--- F1 B1--- F2 B2---UF3 B3--- F4 B4--- F5 B5---U............
Schedule make_pipedream_2bw(Shape shape) {
  return with_updates(make_1f1b(shape), shape.ranks);
}

}  // namespace trireme::pipeline
