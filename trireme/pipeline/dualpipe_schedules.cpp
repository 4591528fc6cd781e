#include <fmt/format.h>

#include <deque>

#include "trireme/pipeline/families.h"

namespace trireme::pipeline {

namespace {

/// Writes the program of one rank: its two stages, the next micro-batch of each act, and the weight
/// halves that are postponed.
class Writer {
 public:
  enum Side { Down = 0, Up = 1 };

  Writer(Program& program, int rank, int ranks)
      : program_(program), stages_{rank, 2 * ranks - 1 - rank} {}

  void forward(Side side) { program_.push_back({stages_[side], Act::Forward, forwards_[side]++}); }
  void backward(Side side) {
    program_.push_back({stages_[side], Act::Backward, backwards_[side]++});
  }
  void input(Side side) {
    postponed_.push_back({stages_[side], Act::BackwardWeight, backwards_[side]});
    program_.push_back({stages_[side], Act::BackwardInput, backwards_[side]++});
  }
  /// Adds the oldest postponed weight half, if there is one.
  void weight() {
    if (postponed_.empty()) return;
    program_.push_back(postponed_.front());
    postponed_.pop_front();
  }
  void pair(Side forward_side, Side backward_side) {
    forward(forward_side);
    program_.back().join = Join::WithNext;
    backward(backward_side);
  }

 private:
  Program& program_;
  int stages_[2];
  int forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
  std::deque<Action> postponed_;
};

/// The tail: backwards are split from its middle on, so that the weight halves fill its end.
void drain(Writer& writer, int rank, int ranks) {
  const int half = (rank + 1) / 2;
  bool split = false;
  const auto back = [&](Writer::Side side) { split ? writer.input(side) : writer.backward(side); };
  for (int i = 0; i <= rank; ++i) {
    split |= i == half && rank % 2 == 1;
    back(Writer::Up);
    split |= i == half && rank % 2 == 0;
    back(Writer::Down);
  }
  for (int i = 0; i < ranks - rank - 1; ++i) {
    writer.weight();
    back(Writer::Down);
  }
  for (int i = 0; i <= rank; ++i) writer.weight();
}

void make_program(Program& program, int rank, Shape shape) {
  Writer writer(program, rank, shape.ranks);
  const int behind = shape.ranks - rank - 1;
  for (int i = 0; i < 2 * behind; ++i) writer.forward(Writer::Down);
  for (int i = 0; i <= rank; ++i) {
    writer.forward(Writer::Down);
    writer.forward(Writer::Up);
  }
  for (int i = 0; i < behind; ++i) {
    writer.input(Writer::Up);
    writer.weight();
    writer.forward(Writer::Up);
  }
  for (int i = 0; i < shape.micros - 2 * shape.ranks + rank + 1; ++i) {
    if (i == 0 &&
        behind == 0) {  // not overlapped: at the turn of the V the forward is needed first
      writer.forward(Writer::Down);
      writer.backward(Writer::Up);
    } else {
      writer.pair(Writer::Down, Writer::Up);
    }
    writer.pair(Writer::Up, Writer::Down);
  }
  for (int i = 0; i < behind; ++i) {
    writer.backward(Writer::Up);
    writer.pair(Writer::Up, Writer::Down);
  }
  drain(writer, rank, shape.ranks);
}

}  // namespace

// DualPipe-V (DeepSeek 2025, the V-shaped half of DualPipe): two stages per rank as in ZB-V; in the
// steady state the forward of one overlaps the backward of the other, so that the transfers of each
// hide behind the computation of the other.
//
//     fill     F down                          2 (P - r - 1) times
//     meet     F down, F up                    r + 1
//     turn     I up, W, F up                   P - r - 1
//     steady   (F down; B up) (F up; B down)   M - 2P + r + 1
//     ebb      B up, (F up; B down)            P - r - 1
//     drain    B up, B down                    r + 1, split in halves from the middle on
//              W, I down                       P - r - 1
//              W                               what is left
//
// P = 2, M = 5; pairs are joined by +:
//
//     0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3+3B1---- ... 3F2+0B0---- 0F4+3B2---- 3F3+0B1---- 3B3---- ...
//     ... 1F0 2F0 1F1 2F1 1F2 2B0---- 2F2+1B0---- 1F3+2B1---- 2F3+1B1---- 1F4+2B2---- 2F4+1B2----
//     ...
Schedule make_dualpipe_v(Shape shape) {
  if (shape.micros < 2 * shape.ranks)
    throw ScheduleError(fmt::format(
        "dualpipe-v of {} ranks needs at least {} micro-batches (two per rank), not {}; zb-v takes "
        "any number",
        shape.ranks, 2 * shape.ranks, shape.micros));
  Schedule schedule = in_a_v(shape);
  for (int rank = 0; rank < shape.ranks; ++rank)
    make_program(schedule.programs[static_cast<std::size_t>(rank)], rank, shape);
  return schedule;
}

}  // namespace trireme::pipeline
