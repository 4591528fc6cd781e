#include "trireme/train/batch_upload.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace trireme::train {

BatchUpload::BatchUpload(c10::Device device) : device_(device) {
  if (!device.is_cpu())
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

data::Batch BatchUpload::to_device(const data::Batch& batch) const {
  if (!stream_) return batch;
  const c10::Stream main = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  data::Batch there = batch;
  {
    const c10::StreamGuard guard(*stream_);
    for (at::Tensor* one : {&there.inputs, &there.targets, &there.documents}) {
      if (!one->defined() || !one->is_cpu()) continue;
      *one = one->pin_memory().to(device_, /*non_blocking=*/true);
      one->record_stream(main);  // its memory is not reused before the step has ended
    }
  }
  c10::Event copied(device_.type());
  copied.record(*stream_);
  copied.block(main);
  return there;
}

}  // namespace trireme::train
