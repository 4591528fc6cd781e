#pragma once

#include <cstddef>
#include <cstdint>

#include "trireme/core/dynamic_library.h"

namespace trireme::cuda {

/// cuBLASLt, opened at run time: the functions that we call, and the numbers of its interface.
struct BlasLt {
  using Handle = void*;
  using Descriptor = void*;  ///< of a product, a matrix or a preference
  struct Algorithm {
    uint64_t data[8];
  };
  struct Candidate {
    Algorithm algorithm;
    std::size_t workspace_bytes;
    int state;  ///< 0: it can be used
    float waves;
    int reserved[4];
  };

  /// Throws Error if there is no cuBLASLt.
  static const BlasLt& get();
  BlasLt();

  core::DynamicLibrary library;
  std::size_t (*version)();
  int (*create)(Handle*);
  int (*product_create)(Descriptor*, int compute, int scale);
  int (*product_set)(Descriptor, int attribute, const void*, std::size_t);
  int (*product_destroy)(Descriptor);
  int (*matrix_create)(Descriptor*, int type, uint64_t rows, uint64_t columns, int64_t stride);
  int (*matrix_destroy)(Descriptor);
  int (*preference_create)(Descriptor*);
  int (*preference_set)(Descriptor, int attribute, const void*, std::size_t);
  int (*preference_destroy)(Descriptor);
  int (*candidates)(Handle, Descriptor product, Descriptor a, Descriptor b, Descriptor c,
                    Descriptor d, Descriptor preference, int wanted, Candidate*, int* found);
  int (*multiply)(Handle, Descriptor product, const void* alpha, const void* a, Descriptor of_a,
                  const void* b, Descriptor of_b, const void* beta, const void* c, Descriptor of_c,
                  void* d, Descriptor of_d, const Algorithm*, void* workspace, std::size_t bytes,
                  void* stream);

  // Attributes of a product.
  static constexpr int kTransposeA = 3, kTransposeB = 4, kEpilogue = 7, kBiasPointer = 8,
                       kAuxPointer = 11, kAuxStride = 12, kBiasType = 26;
  // Attributes of a preference.
  static constexpr int kMaxWorkspace = 1, kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7,
                       kAlignmentD = 8;
  // Types.
  static constexpr int kFloat32 = 0, kFloat16 = 2, kBFloat16 = 14, kComputeFloat32 = 68;
  // Epilogues.
  static constexpr int kNothing = 1, kBias = 4, kGeluAux = 32 | 128, kDGelu = 64 | 128;
};

}  // namespace trireme::cuda
