#pragma once

#include <string>
#include <vector>

#include "trireme/verify/tensor_record.h"

namespace trireme::verify {

/// The kinds of mistakes that the numbers can show.
enum class MistakeKind : uint8_t {
  None,         ///< there is no mistake
  Data,         ///< a rank read wrong samples
  Stale,        ///< a rank is one step behind
  Missing,      ///< no gradient where one rank has one: the graph is broken
  Factor,       ///< n times too large or too small: an average is missing or made twice
  Partial,      ///< a part of a sum: a missing reduction
  Extra,        ///< the sum of what each rank should have: reduced once too often
  Permutation,  ///< the right numbers in the wrong order
  Dropout,      ///< other elements are zero
  Shape,        ///< not the shape that its layout says
  Unknown
};

std::string_view to_string(MistakeKind kind);

/// One tensor of a step: its value in the run on one rank, and the parts that the ranks of the mesh
/// have.
struct ComparedTensor {
  TensorRole role = TensorRole::Input;
  std::string name;
  at::Tensor alone;  ///< of the run on one rank; undefined if it has no gradient
  struct RankPart {
    int rank = 0;
    at::Tensor value;
    std::vector<LocalBox> boxes;
    bool fits = true;  ///< does it have the shape that its layout says?
  };
  std::vector<RankPart> parts;
  double scale = 0;       ///< the largest magnitude; differences are relative to it
  double difference = 0;  ///< the largest relative difference of any rank
  int worst_rank = 0;
};

/// Compares a step on one rank with the same step on the mesh, tensor by tensor in the order of
/// computation; outputs that only one of the two has are left out. Tensors that are 0 but for
/// rounding (a key's bias has no gradient) are measured by the largest of their kind.
std::vector<ComparedTensor> compare(const std::vector<TensorRecord>& alone,
                                    const std::vector<std::vector<TensorRecord>>& ranks,
                                    const Degrees& degrees);

/// The unit roundoff of what the mesh computes, and of gradients on the wire.
struct Roundings {
  double compute = 0, wire = 0;
};

/// The same for a mesh that rounds, where `exact` is one rank's step in float64 and `rounded` one
/// rank's in the precision of the mesh. A difference is then the 2-norm of the mesh's error, by
/// what it may be: twice that of the one rank, and four roundings of the tensor's norm. Inputs must
/// be equal. Inputs must be
/// equal.
std::vector<ComparedTensor> compare_rounded(const std::vector<TensorRecord>& exact,
                                            const std::vector<TensorRecord>& rounded,
                                            const std::vector<std::vector<TensorRecord>>& ranks,
                                            const Degrees& degrees, const Roundings& roundings);

/// What else is known about a tensor that differs.
struct DiagnosisContext {
  Degrees degrees;
  double tolerance = 0;
  at::Tensor before;  ///< the same weight one step earlier, if there was one
  at::Tensor bias;    ///< the bias of the layer whose output it is
};

struct Diagnosis {
  MistakeKind kind = MistakeKind::Unknown;
  std::string sentence;
};

/// The likely kind of mistake, by the shape of the error.
Diagnosis diagnose(const ComparedTensor& tensor, const DiagnosisContext& context);

}  // namespace trireme::verify
