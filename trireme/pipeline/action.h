#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::pipeline {

/// What a rank can be told to do. The names at the right are the text form, which is PyTorch's.
enum class Act : uint8_t {
  Forward,         ///< F            run the stage on one micro-batch
  Backward,        ///< B            full backward
  BackwardInput,   ///< I            the input's gradient only
  BackwardWeight,  ///< W            the weights' gradients only, after I
  SendAct,         ///< SEND_F       activation to the next stage
  RecvAct,         ///< RECV_F       activation from the previous stage
  SendGrad,        ///< SEND_B       gradient to the previous stage
  RecvGrad,        ///< RECV_B       gradient from the next stage
  Unshard,         ///< UNSHARD      gather the stage's weights
  Reshard,         ///< RESHARD      release them
  ReduceGrad,      ///< REDUCE_GRAD  sum the stage's gradients over the replicas
  Update,  ///< UPDATE       optimizer step of one stage (asynchronous schedules; not PyTorch's)
};
constexpr int kNumActs = 12;

/// Whether the action runs alone, or overlapped with the next one.
enum class Join : uint8_t { Alone, WithNext };

/// The micro of acts that concern a whole stage.
constexpr int kNoMicro = -1;

/// One step of one rank: do `act` for micro-batch `micro` on stage `stage`.
struct Action {
  int stage = 0;
  Act act = Act::Forward;
  int micro = kNoMicro;
  Join join = Join::Alone;
  auto operator<=>(const Action&) const = default;
};

/// What one rank does, in order.
using Program = std::vector<Action>;

/// "F", "SEND_B" ...
std::string_view to_string(Act act);
/// "2F0", "1UNSHARD"; without the join.
std::string to_text(const Action& action);

/// Whether it is for one micro-batch; the others concern a whole stage.
constexpr bool has_micro(Act act) {
  return act <= Act::RecvGrad;
}
/// Whether it sends or receives.
constexpr bool is_transfer(Act act) {
  return act >= Act::SendAct && act <= Act::RecvGrad;
}
constexpr bool is_send(Act act) {
  return act == Act::SendAct || act == Act::SendGrad;
}
constexpr bool is_receive(Act act) {
  return act == Act::RecvAct || act == Act::RecvGrad;
}
/// Forward or one of the three backwards: the acts that take a stage's time.
constexpr bool is_compute(Act act) {
  return act <= Act::BackwardWeight;
}
/// Whether it computes the gradient of the stage's input.
constexpr bool gives_gradient(Act act) {
  return act == Act::Backward || act == Act::BackwardInput;
}
/// Whether it completes the micro-batch on this stage, so that its activations are released.
constexpr bool completes_backward(Act act) {
  return act == Act::Backward || act == Act::BackwardWeight;
}

}  // namespace trireme::pipeline
