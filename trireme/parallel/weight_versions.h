#pragma once

#include <cstdint>
#include <vector>

#include "trireme/parallel/parameter_shard.h"

namespace trireme::parallel {

/// The versions of a stage's weights in an asynchronous pipeline: W(t) are the weights after t
/// updates. Each version has its own memory, in a ring. The parameter of a layer stays the same
/// tensor: `use` binds it to the memory of a version, for a forward and again for its backward.
///
///     memory      [ W(6) ][ W(4) ][ W(5) ]       three versions, W(6) is the newest
///                    ^       ^
///     master ────────┘       └──── parameter, while a step runs that uses W(4)
///
/// The optimizer updates the masters, which are other tensors than the parameters even where they
/// share memory with them: autograd would refuse a backward through a parameter that it has seen
/// change, and cannot know that the change was made to another version.
class WeightVersions {
 public:
  /// Keeps `count` versions; all are the present weights. Replaces the master of every shard whose
  /// weight is its own master.
  WeightVersions(std::vector<ParameterShard>& shards, int count);

  /// Binds the parameters to a version: an index of `newest() - count + 1` to `newest()`.
  void use(int64_t version);
  void use_newest() { use(newest_); }
  int64_t newest() const { return newest_; }

  /// Makes the next version, a copy of the newest, which an update then changes through the
  /// masters. The oldest version is gone.
  void advance();
  /// Rounds masters of another dtype to the newest version.
  void round_masters();
  /// Makes all versions the newest one, as at the beginning: an older one is not known.
  void forget();

  int count() const { return static_cast<int>(ring_.size()); }
  /// A shard's weight `age` updates ago; 0 is the newest.
  at::Tensor past(std::size_t shard, int age) const { return slot(newest_ - age)[shard]; }

 private:
  const std::vector<at::Tensor>& slot(int64_t version) const;

  std::vector<at::Tensor> weights_, masters_;
  std::vector<bool> shares_;                   // of each master: it has the memory of the newest
  std::vector<std::vector<at::Tensor>> ring_;  // the memory of each version, by shard
  int64_t newest_ = 0, bound_ = -1;
};

}  // namespace trireme::parallel
