#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <optional>

#include "trireme/data/loader.h"

namespace trireme::train {

/// Copies batches to a GPU on a stream of its own, so that a copy neither waits for the step before
/// nor holds up the host:
///
///   host            pin batch 2, issue its copy
///   copy stream         [ batch 2 ]
///   main stream     [ step 1           ][ step 2     it waits for the copy only
class BatchUpload {
 public:
  explicit BatchUpload(c10::Device device);

  /// The batch with its tensors on the device. What follows on the current stream may use them. On
  /// the CPU it is the batch itself.
  data::Batch to_device(const data::Batch& batch) const;

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace trireme::train
