#include "trireme/cuda/blas_lt.h"

namespace trireme::cuda {

const BlasLt& BlasLt::get() {
  static const BlasLt functions;
  return functions;
}

// libtorch has loaded it already, so its name is enough.
BlasLt::BlasLt() : library("cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"}) {
  library.bind(version, "cublasLtGetVersion");
  library.bind(create, "cublasLtCreate");
  library.bind(product_create, "cublasLtMatmulDescCreate");
  library.bind(product_set, "cublasLtMatmulDescSetAttribute");
  library.bind(product_destroy, "cublasLtMatmulDescDestroy");
  library.bind(matrix_create, "cublasLtMatrixLayoutCreate");
  library.bind(matrix_destroy, "cublasLtMatrixLayoutDestroy");
  library.bind(preference_create, "cublasLtMatmulPreferenceCreate");
  library.bind(preference_set, "cublasLtMatmulPreferenceSetAttribute");
  library.bind(preference_destroy, "cublasLtMatmulPreferenceDestroy");
  library.bind(candidates, "cublasLtMatmulAlgoGetHeuristic");
  library.bind(multiply, "cublasLtMatmul");
}

}  // namespace trireme::cuda
