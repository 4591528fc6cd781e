#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "trireme/core/json.h"
#include "trireme/net/socket.h"

namespace trireme::train {

/// An events file, which TensorBoard reads while it grows: records, each a message of protobuf.
///
///   record   bytes of the message, uint64 | masked CRC | the message | masked CRC     (TFRecord)
///   Event    1: wall time, double   2: step   3: "brain.Event:2", in the first record
///            5: Summary { 1: Value { 1: tag   2: number, float } ... }
///            7: SessionLog { 1: status, 1 = start }
///
/// A run that continues writes a new file. It begins with the start of a session at the next step,
/// for which TensorBoard drops that step and what follows it in older files.
class EventFile {
 public:
  using Tell = std::function<void(const std::string& sentence)>;

  /// Makes FOLDER/events.out.tfevents.SECONDS.HOST.PID; `step` was the last step before.
  EventFile(const std::string& folder, int64_t step, Tell tell);

  /// One number per field of the object, except "step". If the file cannot be written, `tell` says
  /// so once, and nothing more is written.
  void add(int64_t step, const core::Json& numbers);

  const std::string& path() const { return path_; }

 private:
  void write(const std::string& event);

  std::string path_;
  Tell tell_;
  net::Fd file_;
  bool failed_ = false;
};

/// CRC-32C (Castagnoli) of the bytes, as iSCSI and TFRecord have it.
uint32_t crc32c(std::string_view bytes);

}  // namespace trireme::train
