#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <utility>
#include <vector>

#include "trireme/optim/optimizer.h"

namespace trireme::optim {

/// Updates parameters in the host's memory: in copies of them, or where they are, if they are
/// masters that live there while their gradients are on a GPU.
///
///   side stream   gradients 0 down │ gradients 1 down │ parameters 0 up │ parameters 1 up
///   host                             update 0         │ update 1
///
/// On a GPU the copies are pinned, and one run of parameters is updated while the gradients of the
/// next run are copied.
class Offload {
 public:
  explicit Offload(std::vector<Slot> slots);

  /// The slots that it was given.
  const std::vector<Slot>& slots() const { return slots_; }
  /// The slots that an optimizer should work on.
  std::vector<Slot> mirrors() const { return mirrors_; }
  /// Ranges [begin, end) of slots that are updated together.
  const std::vector<std::pair<std::size_t, std::size_t>>& runs() const { return runs_; }

  /// Starts to copy all gradients; undefined ones are undefined in the mirrors.
  void fetch_gradients();
  /// Waits for the gradients of the run that begins at slot `begin`.
  void wait_for(std::size_t begin);
  void send_parameters(std::size_t begin, std::size_t end);
  /// Makes later work on the device wait for the copies.
  void finish();

  /// Copies the parameters again, because they have new values.
  void refresh();

 private:
  bool is_copy(std::size_t i) const {
    return slots_[i].parameter.device() != c10::Device(c10::kCPU);
  }
  void prepare(c10::Device device);

  std::vector<Slot> slots_, mirrors_;
  std::vector<at::Tensor> gradients_;  // memory for the copies; none before the first step
  std::vector<std::pair<std::size_t, std::size_t>> runs_;
  std::optional<c10::Stream> side_;  // of a GPU
  std::vector<c10::Event> came_;     // of each run: its gradients are copied
};

}  // namespace trireme::optim
