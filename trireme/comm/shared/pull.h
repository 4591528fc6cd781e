#pragma once

#include "trireme/comm/shared/collective.h"

namespace trireme::comm {

/// The collectives in which each rank takes what it needs from the others' memory: broadcast,
/// reduce, all_gather, reduce_scatter, all_to_all, gather, scatter, barrier.
///
/// Small data is in the slots, and a rank may go on as soon as it has taken its part. Large data is
/// taken from mapped memory, whose owner stays until all have taken theirs. If some rank's large
/// data is private, it goes over streams instead.
class PullCollective final : public SharedCollective {
 public:
  using SharedCollective::SharedCollective;

 private:
  /// A copy from one rank, or (from == kAll) a reduction over all, of bytes at `begin` of what they
  /// have shown.
  struct Pull {
    static constexpr int kAll = -1;
    int from = kAll;
    int64_t begin = 0;
    std::byte* to = nullptr;
    int64_t bytes = 0;
  };

  Segments::Location show() override;
  Step run() override;

  Interval shows() const;  ///< the bytes of `in` that others take from this rank
  std::vector<Pull> pulls();
  bool shape_agrees(int from, int64_t there, int64_t here);
  int64_t take_some(int64_t most);
  void take(const Pull& pull, int64_t begin, int64_t bytes);
  void reduce_from_all(const Pull& pull, int64_t begin, int64_t bytes);

  enum class Method : uint8_t { Unknown, Slots, Mapped } method_ = Method::Unknown;
  std::vector<Pull> pulls_;
  std::size_t next_ = 0;     ///< index in pulls_
  int64_t at_ = 0;           ///< bytes of that pull that are done
  bool mismatched_ = false;  ///< two ranks disagree about a size
  bool posted_ = false;
};

}  // namespace trireme::comm
