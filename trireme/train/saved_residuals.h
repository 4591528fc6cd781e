#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/format/load.h"
#include "trireme/parallel/reducer.h"

namespace trireme::train {

/// What a tensor that a reducer keeps on this rank is called in a checkpoint:
///
///   PREFIX residual/MESH/rank.N/PARAMETER@OFFSET:SHAPE:BEGIN        a residual, and its place
///   PREFIX shard_residual/MESH/rank.N/PARAMETER@OFFSET:SHAPE:BEGIN  of a sum of shards
///   PREFIX unsent/MESH/rank.N/PARAMETER@OFFSET:SHAPE:BEGIN          of one that no longer has one
///   PREFIX KIND/MESH/rank.N/PARAMETER                               another tensor
///
/// `rank.N.repeat` is a residual that another rank keeps too.
std::string name_of(const std::string& prefix, const parallel::ReducerState& state,
                    const Mesh& mesh);

/// The residuals of a checkpoint, for another mesh than the one that saved them: they are added up
/// element by element, in the coordinates of the whole parameter.
class SavedResiduals {
 public:
  explicit SavedResiduals(format::Checkpoint& from) : from_(from) {}

  struct Taken {
    std::string_view kind;
    const std::string& parameter;
  };
  /// Takes those under a prefix, each times the number that `scale` gives for it.
  void take(const std::string& prefix, const std::function<double(const Taken&)>& scale = {});
  bool empty() const { return by_parameter_.empty(); }

  /// Overwrites the residuals of a rank: those that `gets` names with the sum of what was taken,
  /// the others with 0.
  void put(const std::vector<parallel::ReducerState>& states,
           const std::function<bool(const parallel::ReducerState&)>& gets) const;

 private:
  struct Residual {
    std::string tensor;
    Piece piece;
    double scale = 1;
  };
  at::Tensor sum_of(const std::vector<Residual>& residuals,
                    const std::vector<int64_t>& shape) const;

  format::Checkpoint& from_;
  std::map<std::string, std::vector<Residual>> by_parameter_;
};

}  // namespace trireme::train
