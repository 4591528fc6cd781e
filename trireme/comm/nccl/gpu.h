#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <optional>
#include <string>

namespace trireme::comm::nccl {

/// The GPU that this rank uses unless it says otherwise: number LOCAL_RANK of those that it sees.
/// Nothing if there is none, or libtorch has no CUDA.
std::optional<c10::Device> own_device(int local_rank);

/// Identifies a GPU among those of a host: its UUID.
std::string identity_of(c10::Device device);

/// The stream that the calling thread works on.
c10::Stream current_stream(c10::Device device);

/// Whether what is put on the stream goes into a CUDA graph instead of running.
bool is_capturing(const c10::Stream& stream);

/// Makes the GPU the current one of the calling thread, which may be new to CUDA.
void use_device(c10::Device device);

/// A stream that nobody else has. Those of libtorch's pool repeat after 32: two communicators on
/// one stream could wait for each other for ever.
class OwnStream {
 public:
  explicit OwnStream(c10::Device device);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  const c10::Stream& get() const { return stream_; }
  void* handle() const { return handle_; }

 private:
  void* handle_ = nullptr;
  c10::Stream stream_;
};

}  // namespace trireme::comm::nccl
