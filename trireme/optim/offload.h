#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <utility>
#include <vector>

#include "trireme/optim/optimizer.h"

namespace trireme::optim {

/// Copies of parameters in the host's memory, where they are updated.
///
///   side stream   gradients 0 down │ gradients 1 down │ parameters 0 up │ parameters 1 up
///   host                             update 0         │ update 1
///
/// On a GPU the copies are pinned, and one run of parameters is updated while the next run's
/// gradients are on their way. Parameters in the host's memory are copied all the same.
class Offload {
 public:
  explicit Offload(std::vector<Slot> slots);

  /// The slots that it was given.
  const std::vector<Slot>& slots() const { return slots_; }
  /// The slots that an optimizer should work on.
  std::vector<Slot> mirrors() const { return mirrors_; }
  /// Stretches [begin, end) of slots that are updated together.
  const std::vector<std::pair<std::size_t, std::size_t>>& runs() const { return runs_; }

  /// Starts to copy all gradients; those that are undefined are so in the mirrors.
  void fetch_gradients();
  /// Until those of the run that begins here have come.
  void wait_for(std::size_t begin);
  void send_parameters(std::size_t begin, std::size_t end);
  /// What follows on the device comes after the copies.
  void finish();

  /// The parameters have other values.
  void refresh();

 private:
  std::vector<Slot> slots_, mirrors_;
  std::vector<at::Tensor> gradients_;  // room for them
  std::vector<std::pair<std::size_t, std::size_t>> runs_;
  std::optional<c10::Stream> side_;  // of a GPU
  std::vector<c10::Event> came_;     // by run
};

}  // namespace trireme::optim
