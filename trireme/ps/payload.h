#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::ps {

/// Bytes in somebody's memory, and what keeps that memory alive: a message that was received, the
/// values of a range, a worker's gradient. Copying a Payload copies no bytes. Nobody may change the
/// bytes while a Payload of them exists, except that bytes which are lent (a worker's, in shared
/// memory) are valid until the worker has its answer.
class Payload {
 public:
  Payload() = default;
  /// Keeps a text of its own.
  Payload(std::string text) {  // NOLINT: meant to convert
    auto kept = std::make_shared<const std::string>(std::move(text));
    bytes_ = *kept;
    owner_ = std::move(kept);
  }
  enum class Lent : bool { No, Yes };
  Payload(std::shared_ptr<const void> owner, std::string_view bytes, Lent lent = Lent::No)
      : owner_(std::move(owner)), bytes_(bytes), lent_(lent) {}

  const char* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  std::string_view view() const { return bytes_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }
  Lent lent() const { return lent_; }

  Payload slice(size_t begin, size_t bytes) const {
    return {owner_, bytes_.substr(begin, bytes), lent_};
  }
  /// The same bytes, in memory that is not lent.
  Payload kept() const { return lent_ == Lent::Yes ? Payload(std::string(bytes_)) : *this; }
  bool operator==(const Payload& other) const { return bytes_ == other.bytes_; }

 private:
  std::shared_ptr<const void> owner_;
  std::string_view bytes_;
  Lent lent_ = Lent::No;
};

/// The bytes of a message, in parts that lie in different places: short ones that were written for
/// it, and payloads.
class Frame {
 public:
  Frame() = default;
  Frame(std::string text) { add(std::move(text)); }  // NOLINT: meant to convert

  void add(Payload part) {
    bytes_ += part.size();
    if (!part.empty()) parts_.push_back(std::move(part));
  }
  const std::vector<Payload>& parts() const { return parts_; }
  size_t bytes() const { return bytes_; }

  /// All of it in one piece.
  std::string flat() const {
    std::string all;
    all.reserve(bytes_);
    for (const Payload& part : parts_) all += part.view();
    return all;
  }

 private:
  std::vector<Payload> parts_;
  size_t bytes_ = 0;
};

}  // namespace trireme::ps
