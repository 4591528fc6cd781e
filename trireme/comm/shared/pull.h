#pragma once

#include "trireme/comm/shared/collective.h"

namespace trireme::comm {

/// The collectives in which each rank takes what it needs out of the others' memory: broadcast,
/// reduce, all_gather, reduce_scatter, all_to_all, gather, scatter, barrier.
///
/// Small data is in the slots, and a rank may go on as soon as it has taken its part; large data is
/// taken from mapped memory, whose owner stays until all have done so. Where somebody's large data
/// is private, it goes over streams instead.
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

  Range shows() const;  ///< the bytes of `in` that others take from this rank
  std::vector<Pull> pulls();
  bool shape_agrees(int from, int64_t there, int64_t here);
  int64_t take_some(int64_t most);
  void take(const Pull& pull, int64_t begin, int64_t bytes);
  void reduce_from_all(const Pull& pull, int64_t begin, int64_t bytes);

  enum class Way : uint8_t { Unknown, Slots, Mapped } way_ = Way::Unknown;
  std::vector<Pull> pulls_;
  std::size_t next_ = 0;     ///< of pulls_
  int64_t at_ = 0;           ///< bytes of it that are done
  bool mismatched_ = false;  ///< two ranks do not mean the same sizes
  bool posted_ = false;
};

}  // namespace trireme::comm
