#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "trireme/core/trace.h"
#include "trireme/nn/model.h"

namespace trireme::train {

/// Marks in the current stream of a device, and when the device reached them.
class StreamClock {
 public:
  using Time = core::Trace::Clock::time_point;
  struct Mark {
    virtual ~Mark() = default;
  };
  using MarkPtr = std::shared_ptr<const Mark>;

  virtual ~StreamClock() = default;
  virtual MarkPtr mark() = 0;
  virtual bool has_reached(const Mark& mark) const = 0;
  /// The time on the host's clock. Waits until the device is there.
  virtual Time time_of(const MarkPtr& mark) = 0;
};

/// The clock of a GPU. Its times are as exact as the clocks of GPU and host agree: it compares them
/// once, here.
std::unique_ptr<StreamClock> make_stream_clock(c10::Device device);

/// Adds what a device computes to a trace, in the row "gpu": the forward of every layer, and its
/// backward, from the gradient of its output to that of its input. (A layer whose input has no
/// gradient has only a forward. Weight gradients that a pipeline computes later belong to none.)
///
///   forward    in ──[end of backward]──> begin, compute, end ──> out (begin of backward)
///
/// Marks are read as soon as the device has passed them; nothing waits until the trace is taken.
/// Must be called before weights are sharded, so that gathering them does not count.
void trace_layers(nn::ModelImpl& model, const std::shared_ptr<core::Trace>& trace,
                  std::unique_ptr<StreamClock> clock);

}  // namespace trireme::train
