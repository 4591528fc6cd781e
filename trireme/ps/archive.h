#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/net/bytes.h"
#include "trireme/ps/payload.h"

namespace trireme::ps {

/// A type lists its fields once, and the list serves for writing and for reading:
///
///   struct Ack {
///     TableId table; RangeId range; Epoch epoch; Sequence sequence;
///     template <class Archive>
///     void fields(Archive& archive) { archive(table, range, epoch, sequence); }
///   };
///
/// Numbers are little endian, as wide as their type. A text and a list begin with their length (4
/// bytes), an optional with a flag (1 byte). A payload begins with its length (8 bytes); one of at
/// least kApartBytes is aligned to kAlignBytes from the beginning of the message and is not copied:
///
///   | fields ... | length | zeros |  payload  | fields ... |
///   '------- a part ------------''-- a part --''-- a part --
constexpr size_t kApartBytes = 512, kAlignBytes = 64;
static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie");

inline size_t padding_at(size_t position) {
  return (kAlignBytes - position % kAlignBytes) % kAlignBytes;
}

class Writer {
 public:
  Writer() = default;
  /// Takes memory for so many bytes before payloads at once.
  explicit Writer(size_t bytes) { bytes_.reserve(bytes); }

  template <class... Fields>
  void operator()(const Fields&... fields) {
    (put_field(fields), ...);
  }
  Frame take_frame() {
    frame_.add(std::exchange(bytes_, {}));
    return std::exchange(frame_, {});
  }
  /// The same in one piece.
  std::string take() {
    if (frame_.parts().empty()) return std::exchange(bytes_, {});
    return take_frame().flat();
  }

 private:
  template <std::unsigned_integral T>
  void put_number(T number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  template <class T>
  void put_field(const T& field) {
    if constexpr (std::is_same_v<T, bool>)
      put_number(static_cast<uint8_t>(field));
    else if constexpr (std::is_enum_v<T>)
      put_number(static_cast<std::underlying_type_t<T>>(field));
    else if constexpr (std::unsigned_integral<T>)
      put_number(field);
    else if constexpr (std::signed_integral<T>)
      put_number(static_cast<std::make_unsigned_t<T>>(field));
    else if constexpr (std::same_as<T, double>)
      put_number(std::bit_cast<uint64_t>(field));
    else
      const_cast<T&>(field).fields(*this);  // lists the fields, changes none
  }
  void put_field(const std::string& text) {
    put_number(static_cast<uint32_t>(text.size())), bytes_ += text;
  }
  void put_field(const Payload& payload) {
    put_number(static_cast<uint64_t>(payload.size()));
    if (payload.size() < kApartBytes) {
      bytes_ += payload.view();
      return;
    }
    bytes_.append(padding_at(frame_.bytes() + bytes_.size()), '\0');
    frame_.add(std::exchange(bytes_, {}));
    frame_.add(payload);
  }
  template <class T>
  void put_field(const std::vector<T>& list) {
    put_number(static_cast<uint32_t>(list.size()));
    if constexpr (std::unsigned_integral<T>)
      bytes_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T));
    else
      for (const T& item : list) put_field(item);
  }
  template <class T>
  void put_field(const std::optional<T>& field) {
    put_field(field.has_value());
    if (field) put_field(*field);
  }
  template <class K, class V>
  void put_field(const std::map<K, V>& table) {
    put_number(static_cast<uint32_t>(table.size()));
    for (const auto& [key, value] : table) (*this)(key, value);
  }
  template <class T>
  void put_field(const std::set<T>& items) {
    put_number(static_cast<uint32_t>(items.size()));
    for (const T& item : items) put_field(item);
  }

  Frame frame_;
  std::string bytes_;  ///< behind the frame's parts
};

/// Reads what a Writer wrote, in one piece or in parts. Throws CommError for bytes that are too few
/// or make no sense. A list grows with the items that are there, whatever length it announces.
class Reader {
 public:
  /// Payloads are copied out of the bytes.
  explicit Reader(std::string_view bytes) : reader_(bytes) {}
  /// Payloads stay where they are, and keep what the frame keeps.
  explicit Reader(const Frame& frame) : frame_(&frame), reader_({}) {
    if (!frame.parts().empty()) begin_part();
  }

  template <class... Fields>
  void operator()(Fields&... fields) {
    (get_field(fields), ...);
  }
  /// Throws CommError unless everything has been read.
  void finish() const {
    const bool more = frame_ && part_ + 1 < frame_->parts().size();
    if (more || !reader_.rest().empty())
      throw CommError(fmt::format("sent a message with {} bytes after its end", bytes_left()));
  }
  size_t bytes_left() const {
    size_t bytes = reader_.rest().size();
    for (size_t i = part_ + 1; frame_ && i < frame_->parts().size(); ++i)
      bytes += frame_->parts()[i].size();
    return bytes;
  }

 private:
  void begin_part() { reader_ = net::ByteReader(frame_->parts()[part_].view()); }
  /// Fields never cross from one part to the next.
  net::ByteReader& reader() {
    while (reader_.rest().empty() && frame_ && part_ + 1 < frame_->parts().size()) {
      position_ += frame_->parts()[part_++].size();
      begin_part();
    }
    return reader_;
  }
  size_t position() const {
    const size_t taken = reader_.rest().size();
    return position_ + (frame_ ? frame_->parts()[part_].size() : whole_) - taken;
  }

  template <std::unsigned_integral T>
  T number() {
    T value;
    std::memcpy(&value, reader().take(sizeof value).data(), sizeof value);
    return value;
  }
  template <class T>
  void get_field(T& field) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto value = number<uint8_t>();
      if (value > 1) throw CommError(fmt::format("sent the flag {}", value));
      field = value == 1;
    } else if constexpr (std::is_enum_v<T>) {
      field = static_cast<T>(number<std::underlying_type_t<T>>());
      check_enum(field);
    } else if constexpr (std::unsigned_integral<T>) {
      field = number<T>();
    } else if constexpr (std::signed_integral<T>) {
      field = static_cast<T>(number<std::make_unsigned_t<T>>());
    } else if constexpr (std::same_as<T, double>) {
      field = std::bit_cast<double>(number<uint64_t>());
    } else {
      field.fields(*this);
    }
  }
  void get_field(std::string& text) { text = reader().text<uint32_t>(); }
  void get_field(Payload& payload) {
    const auto bytes = number<uint64_t>();
    if (bytes >= kApartBytes) {
      const size_t zeros = padding_at(position());
      for (const char zero : zeros > 0 ? reader().take(zeros) : std::string_view())
        if (zero != 0) throw CommError("sent a payload behind other bytes than zeros");
    }
    const std::string_view there = bytes > 0 ? reader().take(bytes) : std::string_view();
    if (frame_ && frame_->parts()[part_].owner())
      payload = {frame_->parts()[part_].owner(), there, frame_->parts()[part_].lent()};
    else
      payload = std::string(there);
  }
  template <class T>
  void get_field(std::vector<T>& list) {
    const size_t count = read_count(std::unsigned_integral<T> ? sizeof(T) : 1);
    list.clear();
    if constexpr (std::unsigned_integral<T>) {
      list.resize(count);
      const std::string_view there = count > 0 ? reader().take(count * sizeof(T)) : "";
      std::copy(there.begin(), there.end(), reinterpret_cast<char*>(list.data()));
    } else {
      for (size_t i = 0; i < count; ++i) get_field(list.emplace_back());
    }
  }
  template <class T>
  void get_field(std::optional<T>& field) {
    bool present = false;
    get_field(present);
    field.reset();
    if (present) get_field(field.emplace());
  }
  template <class K, class V>
  void get_field(std::map<K, V>& table) {
    table.clear();
    for (size_t left = read_count(1); left > 0; --left) {
      K key{};
      get_field(key);
      get_field(table[key]);
    }
  }
  template <class T>
  void get_field(std::set<T>& items) {
    items.clear();
    for (size_t left = read_count(1); left > 0; --left) {
      T item{};
      get_field(item);
      items.insert(std::move(item));
    }
  }
  /// Every item has at least `item_bytes`. (In memory it may have some dozens.)
  size_t read_count(size_t item_bytes) {
    const auto count = number<uint32_t>();
    if (count > bytes_left() / item_bytes)
      throw CommError(
          fmt::format("sent a list of {} items in the last {} bytes", count, bytes_left()));
    return count;
  }
  /// Enums of messages have the values 0 to `last_of`.
  template <class Enum>
  static void check_enum(Enum value) {
    if (value > last_of(value))
      throw CommError(fmt::format("sent the unknown {} as an enumerator",
                                  static_cast<std::underlying_type_t<Enum>>(value)));
  }

  const Frame* frame_ = nullptr;  ///< or one piece
  size_t part_ = 0;
  size_t position_ = 0;  ///< of the part's first byte in the message
  net::ByteReader reader_;
  size_t whole_ = reader_.rest().size();  ///< of one piece
};

template <class T>
std::string to_bytes(const T& value) {
  Writer writer;
  writer(value);
  return writer.take();
}

/// Throws CommError unless the bytes are one T and nothing else.
template <class T>
T from_bytes(std::string_view bytes) {
  Reader reader(bytes);
  T value{};
  reader(value);
  reader.finish();
  return value;
}

}  // namespace trireme::ps
