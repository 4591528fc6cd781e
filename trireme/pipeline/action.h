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
  Reshard,         ///< RESHARD      let them go
  ReduceGrad,      ///< REDUCE_GRAD  sum the stage's gradients over the replicas
  Update,  ///< UPDATE       optimizer step of one stage (asynchronous schedules; not PyTorch's)
};
constexpr int kNumActs = 12;

/// Does it stand alone, or is it the first half of two that run overlapped?
enum class Join : uint8_t { Alone, WithNext };

/// Of acts that concern a stage as a whole.
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
/// "2F0", "1UNSHARD"; the join does not show.
std::string to_text(const Action& action);

/// Of one micro-batch: everything but the acts that concern a stage as a whole.
constexpr bool has_micro(Act act) {
  return act <= Act::RecvGrad;
}
/// Does it send or receive?
constexpr bool is_transfer(Act act) {
  return act >= Act::SendAct && act <= Act::RecvGrad;
}
constexpr bool is_send(Act act) {
  return act == Act::SendAct || act == Act::SendGrad;
}
constexpr bool is_receive(Act act) {
  return act == Act::RecvAct || act == Act::RecvGrad;
}
/// Forward or one of the three backwards: what takes a stage's time.
constexpr bool is_compute(Act act) {
  return act <= Act::BackwardWeight;
}
/// After it the gradient of the stage's input is there.
constexpr bool gives_gradient(Act act) {
  return act == Act::Backward || act == Act::BackwardInput;
}
/// After it nothing of the micro-batch is kept any more.
constexpr bool lets_go(Act act) {
  return act == Act::Backward || act == Act::BackwardWeight;
}

}  // namespace trireme::pipeline
