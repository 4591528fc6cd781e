#include "trireme/train/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "trireme/core/error.h"

namespace trireme::train {

namespace {

// --- protobuf: a field is its number and kind in one varint, then its value

enum class Kind : uint8_t { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };

void put_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>(value | 0x80);
  to += static_cast<char>(value);
}

void put_key(std::string& to, int field, Kind kind) {
  put_varint(to, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(kind));
}

/// Little-endian.
template <class T>
void put_fixed(std::string& to, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i) to += static_cast<char>(value >> (8 * i) & 0xff);
}

void put_bytes(std::string& to, int field, std::string_view bytes) {
  put_key(to, field, Kind::Bytes);
  put_varint(to, bytes.size());
  to += bytes;
}

/// The fields that every Event has.
std::string event_at(int64_t step) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  put_key(event, 1, Kind::Fixed64);
  put_fixed(event, std::bit_cast<uint64_t>(now.count()));
  put_key(event, 2, Kind::Varint);
  put_varint(event, static_cast<uint64_t>(step));
  return event;
}

std::string value_of(std::string_view tag, float number) {
  std::string value;
  put_bytes(value, 1, tag);
  put_key(value, 2, Kind::Fixed32);
  put_fixed(value, std::bit_cast<uint32_t>(number));
  return value;
}

/// A CRC in a file whose own bytes are checked by CRCs would be found in it: it is disguised.
uint32_t masked_crc(std::string_view bytes) {
  constexpr uint32_t kDelta = 0xa282ead8;
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + kDelta;
}

std::string record_of(const std::string& event) {
  std::string record;
  put_fixed(record, static_cast<uint64_t>(event.size()));
  put_fixed(record, masked_crc(record));
  record += event;
  put_fixed(record, masked_crc(event));
  return record;
}

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78U : 0);
    table[byte] = crc;
  }
  return table;
}();

std::string name_of_file() {
  char host[65] = "host";
  ::gethostname(host, sizeof host - 1);
  return fmt::format("events.out.tfevents.{}.{}.{}", std::time(nullptr), host, ::getpid());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char c : bytes)
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}

EventFile::EventFile(const std::string& folder, int64_t step, Tell tell)
    : path_(folder + "/" + name_of_file()),
      tell_(std::move(tell)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  if (!file_) throw Error(fmt::format("cannot write {}: {}", path_, core::errno_text(errno)));
  std::string version = event_at(0);
  put_bytes(version, 3, "brain.Event:2");
  write(version);
  if (step == 0) return;
  std::string start = event_at(step + 1), session;
  put_key(session, 1, Kind::Varint);
  put_varint(session, 1);
  put_bytes(start, 7, session);
  write(start);
}

void EventFile::add(int64_t step, const core::Json& numbers) {
  std::string summary;
  for (const auto& [tag, number] : numbers.items())
    if (number.is_number() && tag != "step")
      put_bytes(summary, 1, value_of(tag, number.get<float>()));
  std::string event = event_at(step);
  put_bytes(event, 5, summary);
  write(event);
}

/// One record, by one call: a reader sees all of it or a part that it waits for.
void EventFile::write(const std::string& event) {
  if (failed_) return;
  const std::string record = record_of(event);
  const ssize_t wrote = ::write(file_.get(), record.data(), record.size());
  if (wrote == static_cast<ssize_t>(record.size())) return;
  failed_ = true;  // the next record could not be read behind half of one
  tell_(fmt::format("cannot write {}: {}; TensorBoard will not see the rest of this run", path_,
                    wrote < 0 ? core::errno_text(errno) : "the disk is full"));
}

}  // namespace trireme::train
