#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/core/op_info.h"
#include "trireme/layout/layout.h"
#include "trireme/layout/rank_set.h"

namespace trireme {

/// What the shard axis divides among its ranks (the stages of ZeRO, Rajbhandari et al. 2020). Each
/// level includes those before it; at None every rank of the axis is one more replica.
enum class Sharding : uint8_t { None, Optimizer, Gradients, Parameters };

/// What is sharded on a mesh of these degrees: nothing if no ranks share the state.
Sharding sharding_on(const Degrees& degrees, Sharding asked);

/// The dtypes of one parameter: the one that layers compute in, the one its gradient is summed in
/// over ranks, and the one in which the optimizer keeps and updates it.
///
///               compute   gradient  reduce   master
///   float32     float32   float32   float32  float32    the weight itself
///   bfloat16    bfloat16  float32   float32  float32    rounded to the weight
///   no master   bfloat16  float32   float32  bfloat16   updates round at random
struct ParameterDtypes {
  core::DType compute = core::DType::Float32, reduce = core::DType::Float32,
              master = core::DType::Float32;

  /// The dtype in which the gradients of micro-batches are added up: at least float32.
  core::DType gradient() const;
  bool operator==(const ParameterDtypes&) const = default;
};

/// The same three dtypes for a parameter that has only one.
constexpr ParameterDtypes all_of(core::DType dtype) {
  return {dtype, dtype, dtype};
}

/// Does a dtype have 16 bits?
constexpr bool is_half(core::DType dtype) {
  return dtype == core::DType::BFloat16 || dtype == core::DType::Float16;
}

/// Does a parameter's name match a pattern, as a shell matches? `*` stands for any text.
bool matches_name(const std::string& pattern, const std::string& name);

/// The precision of a model.
struct Precision {
  /// Of every parameter; none: each has a single dtype, that of its tensor.
  std::optional<ParameterDtypes> dtypes = {};
  /// Patterns of names, as a shell's: parameters that match are not computed in 16 bits, but in
  /// float32.
  std::vector<std::string> keep = {};
  /// Masters that are not the weights themselves are kept in the host's memory: an optimizer that
  /// works there needs no copy of them on the GPU.
  bool masters_on_host = false;

  /// The dtypes of the parameter of this name, whose tensor has the dtype `own`.
  ParameterDtypes dtypes_of(const std::string& name, core::DType own) const;
};

/// What the configuration decides about the state of a parameter.
struct Policy {
  Sharding sharding = Sharding::None;
  Precision precision = {};
};

/// The ranks over which the gradient of a parameter is summed while backward runs. They are the
/// same for all its boxes; parameters with the same sums share buckets.
struct GradientSums {
  RankSet all;  ///< the gradients of these ranks are summed
  RankSet
      shards;    ///< each of these ranks ends with its own range of a box; one rank: with all of it
  RankSet rest;  ///< the shards are then summed over these ranks
  auto operator<=>(const GradientSums&) const = default;
};
GradientSums gradient_sums_of(const Layout& layout, const Degrees& degrees, const Policy& policy);

/// How one box of a parameter is treated in a step, seen from one rank: over which ranks its
/// gradient is summed, which elements this rank keeps, which ranks keep the same (and share the
/// writing of checkpoints), and which rank counts them in a norm. All code that needs one of these
/// answers reads it here.
///
///   pipe 2 x replica 2 x shard 2 x tensor 2, sharded; a weight that tensor does not cut, tied on
///   both stages, under sequence parallelism:
///
///     this rank's gradient
///       └─ reduce-scatter over shard                  `sums.shards`
///            └─ all-reduce over replica+tensor        `sums.rest`
///                 └─ all-reduce over pipe 0, 1        `later`
///                      └─ this rank keeps `kept` of it, as do the ranks of `same`
struct Reduction {
  LocalBox box;  ///< the box, in the whole and in the rank's own tensor
  GradientSums sums;
  /// Afterwards the result is summed over each of these sets in turn: the ranks that hold a copy of
  /// the box, then the stages that hold the same weight.
  std::vector<RankSet> later;
  Position shard;        ///< this rank among `sums.shards`
  Range kept;            ///< the elements of the flat box that this rank keeps as its state
  RankSet same;          ///< the ranks that keep the same elements
  RankSet same_weight;   ///< the ranks that have the same box to compute with
  bool counts = true;    ///< the first rank of `same`: its elements count in norms and sums
  bool repeats = false;  ///< ranks of `same` compute the gradient each for itself, without a sum
  ParameterDtypes dtypes;
};

/// One reduction per box that the rank at `coord` holds of the parameter, in the order of
/// `Layout::local_boxes`. `holders`: the pipe ranks that hold the parameter; empty: this one only.
/// `dtypes`: by `Precision::dtypes_of`.
std::vector<Reduction> reductions_of(const Layout& layout, const Holders& holders,
                                     const Degrees& degrees, const Coord& coord,
                                     const Policy& policy, const ParameterDtypes& dtypes = {});

/// What this rank keeps of the box, as a stored part of the tensor `name`; may be empty.
Piece piece_of(std::string_view name, const Layout& layout, const Reduction& one);

/// The pieces of all boxes that the rank keeps something of.
std::vector<Piece> pieces_of(std::string_view name, const Layout& layout, const Coord& coord,
                             const Degrees& degrees, const Policy& policy);

/// Every set in the `later` of any rank's reductions of this parameter that divides the tensor
/// axis, in the same order on every rank: making a group is collective.
std::vector<RankSet> copy_sets_of(const Layout& layout, const Degrees& degrees);

/// The ranks that have the same buffers: all ranks of a stage.
RankSet same_stage();

/// The axes over which the samples of a batch are dealt.
std::vector<Axis> sample_axes();

/// Does this rank report its loss? The ranks of a tensor axis compute one loss together, and the
/// first of them reports it.
bool reports_loss(const Coord& coord);

}  // namespace trireme
