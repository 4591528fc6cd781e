#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/net/bytes.h"

namespace trireme::ps {

/// A type lists its fields once, and the list serves for writing and for reading:
///
///   struct Ack {
///     TableId table; RangeId range; Epoch epoch; Sequence sequence;
///     template <class Archive> void fields(Archive& archive) { archive(table, range, epoch,
///     sequence); }
///   };
///
/// Numbers are little endian, as wide as their type. A text and a list begin with their length (4
/// bytes), an optional with a flag (1 byte).
class Writer {
 public:
  template <class... Fields>
  void operator()(const Fields&... fields) {
    (put_field(fields), ...);
  }
  std::string take() { return std::move(bytes_); }

 private:
  template <class T>
  void put_field(const T& field) {
    if constexpr (std::is_same_v<T, bool>)
      net::put(bytes_, static_cast<uint8_t>(field));
    else if constexpr (std::is_enum_v<T>)
      net::put(bytes_, static_cast<std::underlying_type_t<T>>(field));
    else if constexpr (std::unsigned_integral<T>)
      net::put(bytes_, field);
    else if constexpr (std::same_as<T, int64_t>)
      net::put(bytes_, static_cast<uint64_t>(field));
    else if constexpr (std::same_as<T, double>)
      net::put(bytes_, std::bit_cast<uint64_t>(field));
    else
      const_cast<T&>(field).fields(*this);  // lists the fields, changes none
  }
  void put_field(const std::string& text) { net::put_text<uint32_t>(bytes_, text); }
  template <class T>
  void put_field(const std::vector<T>& list) {
    net::put(bytes_, static_cast<uint32_t>(list.size()));
    for (const T& item : list) put_field(item);
  }
  template <class T>
  void put_field(const std::optional<T>& field) {
    put_field(field.has_value());
    if (field) put_field(*field);
  }
  template <class K, class V>
  void put_field(const std::map<K, V>& table) {
    net::put(bytes_, static_cast<uint32_t>(table.size()));
    for (const auto& [key, value] : table) (*this)(key, value);
  }

  std::string bytes_;
};

/// Reads what a Writer wrote. Throws CommError for bytes that are too few or make no sense. A
/// list grows with the items that are there, whatever length it announces.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : reader_(bytes) {}

  template <class... Fields>
  void operator()(Fields&... fields) {
    (get_field(fields), ...);
  }
  std::string_view rest() const { return reader_.rest(); }
  /// Throws CommError unless everything has been read.
  void finish() const {
    if (!rest().empty())
      throw CommError(fmt::format("sent a message with {} bytes after its end", rest().size()));
  }

 private:
  template <class T>
  void get_field(T& field) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto value = reader_.number<uint8_t>();
      if (value > 1) throw CommError(fmt::format("sent the flag {}", value));
      field = value == 1;
    } else if constexpr (std::is_enum_v<T>) {
      field = static_cast<T>(reader_.number<std::underlying_type_t<T>>());
      check_enum(field);
    } else if constexpr (std::unsigned_integral<T>) {
      field = reader_.number<T>();
    } else if constexpr (std::same_as<T, int64_t>) {
      field = static_cast<int64_t>(reader_.number<uint64_t>());
    } else if constexpr (std::same_as<T, double>) {
      field = std::bit_cast<double>(reader_.number<uint64_t>());
    } else {
      field.fields(*this);
    }
  }
  void get_field(std::string& text) { text = reader_.text<uint32_t>(); }
  template <class T>
  void get_field(std::vector<T>& list) {
    const size_t count = read_count();
    list.clear();
    if constexpr (std::is_arithmetic_v<T>) list.reserve(std::min(count, rest().size() / sizeof(T)));
    for (size_t i = 0; i < count; ++i) get_field(list.emplace_back());
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
    for (size_t left = read_count(); left > 0; --left) {
      K key{};
      get_field(key);
      get_field(table[key]);
    }
  }
  /// Every item has at least one byte. (In memory it may have some dozens.)
  size_t read_count() {
    const auto count = reader_.number<uint32_t>();
    if (count > rest().size())
      throw CommError(
          fmt::format("sent a list of {} items in the last {} bytes", count, rest().size()));
    return count;
  }
  /// Enums of messages have the values 0 to `Last`.
  template <class Enum>
  static void check_enum(Enum value) {
    if (value > last_of(value))
      throw CommError(fmt::format("sent the unknown {} as an enumerator",
                                  static_cast<std::underlying_type_t<Enum>>(value)));
  }

  net::ByteReader reader_;
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
