#include "trireme/cuda/matmul.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "trireme/core/error.h"
#include "trireme/cuda/blas_lt.h"
#include "trireme/cuda/disk_cache.h"
#include "trireme/cuda/driver.h"
#include "trireme/cuda/kernel.h"

namespace trireme::cuda {

namespace {

/// A matrix as cuBLASLt sees it: column by column, so a row-major one is its transpose.
struct Matrix {
  void* data = nullptr;
  int64_t rows = 0, columns = 0, stride = 0;
  int type = BlasLt::kBFloat16;
  bool transposed = false;  ///< an operand: use its transpose
};

/// D = op(A) op(B) + beta C, then the epilogue.
struct Call {
  Matrix a, b, c, d;
  int epilogue = BlasLt::kNothing;
  void *bias = nullptr, *aux = nullptr;
  int64_t aux_stride = 0;
  float beta = 0;
};

constexpr int kCandidates = 16;
constexpr std::size_t kMostWorkspace = std::size_t{64} << 20;
constexpr double kWorthTiming = 1e9;  // operations

int type_of(const at::Tensor& x) {
  if (x.scalar_type() == at::kBFloat16) return BlasLt::kBFloat16;
  return x.scalar_type() == at::kHalf ? BlasLt::kFloat16 : BlasLt::kFloat32;
}

/// A row-major tensor: its transpose.
Matrix matrix_of(const at::Tensor& x) {
  return {x.data_ptr(), x.size(1), x.size(0), std::max(x.stride(0), x.size(1)), type_of(x), false};
}

bool suits(const at::Tensor& x) {
  return x.is_cuda() && x.dim() == 2 && x.numel() > 0 && (x.stride(1) == 1 || x.size(1) == 1) &&
         (x.stride(0) >= x.size(1) || x.size(0) == 1);
}

bool is_half(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

/// The largest power of two, up to 256, that divides an address.
unsigned alignment_of(const void* address) {
  const auto value = reinterpret_cast<uintptr_t>(address);
  return static_cast<unsigned>(value == 0 ? 256 : std::min<uintptr_t>(256, value & (~value + 1)));
}

void check(int status, const char* call) {
  if (status != 0) throw Error(fmt::format("cuBLASLt: {} failed with status {}", call, status));
}

/// Descriptors of a product, and the algorithm that was chosen for it.
class Plan {
 public:
  explicit Plan(const Call& call);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  /// Chooses an algorithm. False if there is none.
  bool choose(const Call& call, const std::string& key, c10::Device device);
  void run(const Call& call, c10::Device device);

 private:
  std::vector<BlasLt::Candidate> candidates(const Call& call) const;
  double time(const Call& call, const BlasLt::Candidate& candidate, c10::Device device);
  int launch(const Call& call, const BlasLt::Candidate& candidate, c10::Device device) const;

  std::mutex mutex_;
  BlasLt::Descriptor product_ = nullptr, a_ = nullptr, b_ = nullptr, c_ = nullptr, d_ = nullptr;
  BlasLt::Candidate chosen_{}, first_{};  // that runs; that cuBLASLt would take
};

BlasLt::Handle handle_for(c10::Device device) {
  static std::mutex mutex;
  static std::map<int, BlasLt::Handle> handles;
  const std::lock_guard lock(mutex);
  BlasLt::Handle& handle = handles[device.index()];
  if (handle == nullptr) check(BlasLt::get().create(&handle), "cublasLtCreate");
  return handle;
}

Plan::Plan(const Call& call) {
  const BlasLt& lt = BlasLt::get();
  check(lt.product_create(&product_, BlasLt::kComputeFloat32, BlasLt::kFloat32),
        "MatmulDescCreate");
  const int32_t transpose_a = call.a.transposed ? 1 : 0, transpose_b = call.b.transposed ? 1 : 0;
  lt.product_set(product_, BlasLt::kTransposeA, &transpose_a, sizeof transpose_a);
  lt.product_set(product_, BlasLt::kTransposeB, &transpose_b, sizeof transpose_b);
  lt.product_set(product_, BlasLt::kEpilogue, &call.epilogue, sizeof call.epilogue);
  if (call.bias != nullptr) {
    lt.product_set(product_, BlasLt::kBiasPointer, &call.bias, sizeof call.bias);
    lt.product_set(product_, BlasLt::kBiasType, &call.a.type, sizeof call.a.type);
  }
  if (call.aux != nullptr) {
    lt.product_set(product_, BlasLt::kAuxPointer, &call.aux, sizeof call.aux);
    lt.product_set(product_, BlasLt::kAuxStride, &call.aux_stride, sizeof call.aux_stride);
  }
  const auto make = [&](BlasLt::Descriptor* to, const Matrix& matrix) {
    check(lt.matrix_create(to, matrix.type, static_cast<uint64_t>(matrix.rows),
                           static_cast<uint64_t>(matrix.columns), matrix.stride),
          "MatrixLayoutCreate");
  };
  make(&a_, call.a);
  make(&b_, call.b);
  make(&c_, call.c);
  make(&d_, call.d);
}

Plan::~Plan() {
  const BlasLt& lt = BlasLt::get();
  if (product_ != nullptr) lt.product_destroy(product_);
  for (BlasLt::Descriptor one : {a_, b_, c_, d_})
    if (one != nullptr) lt.matrix_destroy(one);
}

std::vector<BlasLt::Candidate> Plan::candidates(const Call& call) const {
  const BlasLt& lt = BlasLt::get();
  BlasLt::Descriptor preference = nullptr;
  check(lt.preference_create(&preference), "MatmulPreferenceCreate");
  lt.preference_set(preference, BlasLt::kMaxWorkspace, &kMostWorkspace, sizeof kMostWorkspace);
  const auto align = [&](int attribute, const void* address) {
    const uint32_t bytes = alignment_of(address);
    lt.preference_set(preference, attribute, &bytes, sizeof bytes);
  };
  align(BlasLt::kAlignmentA, call.a.data);
  align(BlasLt::kAlignmentB, call.b.data);
  align(BlasLt::kAlignmentC, call.c.data);
  align(BlasLt::kAlignmentD, call.d.data);
  std::vector<BlasLt::Candidate> found(kCandidates);
  int count = 0;
  const c10::Device device(c10::DeviceType::CUDA,
                           c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice().index());
  const int status = lt.candidates(handle_for(device), product_, a_, b_, c_, d_, preference,
                                   kCandidates, found.data(), &count);
  lt.preference_destroy(preference);
  found.resize(status == 0 ? static_cast<std::size_t>(count) : 0);
  std::erase_if(found, [](const BlasLt::Candidate& one) { return one.state != 0; });
  return found;
}

int Plan::launch(const Call& call, const BlasLt::Candidate& candidate, c10::Device device) const {
  const float one = 1;
  at::Tensor workspace;
  if (candidate.workspace_bytes > 0)
    workspace = at::empty({static_cast<int64_t>(candidate.workspace_bytes)},
                          at::TensorOptions().dtype(at::kByte).device(device));
  return BlasLt::get().multiply(handle_for(device), product_, &one, call.a.data, a_, call.b.data,
                                b_, &call.beta, call.c.data, c_, call.d.data, d_,
                                &candidate.algorithm,
                                workspace.defined() ? workspace.data_ptr() : nullptr,
                                candidate.workspace_bytes, current_stream(device));
}

/// Milliseconds of one product, the best of a few; infinite if it cannot be run.
double Plan::time(const Call& call, const BlasLt::Candidate& candidate, c10::Device device) {
  constexpr int kRepeats = 5;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= kRepeats; ++i) {  // the first warms up
    c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT),
        end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    begin.record(stream);
    if (launch(call, candidate, device) != 0) return std::numeric_limits<double>::infinity();
    end.record(stream);
    end.synchronize();
    if (i > 0) best = std::min(best, begin.elapsedTime(end));
  }
  return best;
}

bool Plan::choose(const Call& call, const std::string& key, c10::Device device) {
  const auto found = candidates(call);
  if (found.empty()) return false;
  chosen_ = first_ = found.front();
  const double operations = 2.0 * static_cast<double>(call.d.rows) *
                            static_cast<double>(call.d.columns) *
                            static_cast<double>(call.a.transposed ? call.a.rows : call.a.columns);
  if (operations < kWorthTiming || at::globalContext().deterministicAlgorithms()) return true;

  const DiskCache cache("matmul");
  const auto as_text = [](const BlasLt::Candidate& one) {
    return std::string(reinterpret_cast<const char*>(&one), sizeof one);
  };
  std::optional<std::string> kept = cache.find(key);
  if (!kept || kept->size() != sizeof chosen_) {
    // A sum is tried in memory of its own, because its result is an input as well. Other results
    // can be overwritten.
    Call trial = call;
    at::Tensor scratch;
    if (call.beta != 0 && call.c.data == call.d.data) {
      const int64_t bytes =
          call.d.stride * call.d.columns * (call.d.type == BlasLt::kFloat32 ? 4 : 2);
      scratch = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
      trial.c.data = trial.d.data = scratch.data_ptr();
    }
    double best = std::numeric_limits<double>::infinity();
    for (const BlasLt::Candidate& one : found) {
      const double ms = time(trial, one, device);
      if (ms < best) {
        best = ms;
        chosen_ = one;
      }
    }
    kept = cache.keep(key, as_text(chosen_));
  }
  if (kept->size() == sizeof chosen_) std::memcpy(&chosen_, kept->data(), sizeof chosen_);
  return true;
}

void Plan::run(const Call& call, c10::Device device) {
  const BlasLt& lt = BlasLt::get();
  const std::lock_guard lock(mutex_);
  if (call.bias != nullptr)
    lt.product_set(product_, BlasLt::kBiasPointer, &call.bias, sizeof call.bias);
  if (call.aux != nullptr)
    lt.product_set(product_, BlasLt::kAuxPointer, &call.aux, sizeof call.aux);
  int status = launch(call, chosen_, device);
  if (status != 0) {  // one from the cache that does not run here
    chosen_ = first_;
    status = launch(call, chosen_, device);
  }
  check(status, "cublasLtMatmul");
}

/// What a plan depends on: of each matrix the shape, dtype, alignment and transposition, then the
/// epilogue.
using Key = std::array<int64_t, 28>;

Key key_of(const Call& call) {
  Key key{};
  auto at = key.begin();
  for (const Matrix& one : {call.a, call.b, call.c, call.d}) {
    for (const int64_t value : {one.rows, one.columns, one.stride, int64_t{one.type},
                                int64_t{alignment_of(one.data)}, int64_t{one.transposed}})
      *at++ = value;
  }
  *at++ = call.epilogue;
  *at++ = call.bias != nullptr ? 1 : 0;
  *at++ = call.aux != nullptr ? call.aux_stride : 0;
  *at++ = static_cast<int64_t>(call.beta);
  return key;
}

/// The same for the cache on disk, which GPUs and versions share.
std::string text_of(const Key& key, c10::Device device) {
  return fmt::format("cuBLASLt {} sm {} of {} multiprocessors: {}", BlasLt::get().version(),
                     architecture(device), Driver::get().multiprocessors(device.index()),
                     fmt::join(key, " "));
}

/// Runs a product by the plan for its shape; false if there is none.
bool run(const Call& call, c10::Device device) {
  static std::mutex mutex;
  // By GPU, by whether the choice must not depend on times, and by product.
  static std::map<std::tuple<int, bool, Key>, std::unique_ptr<Plan>> plans;
  const c10::DeviceGuard guard(device);
  const Key key = key_of(call);
  const std::tuple here(device.index(), at::globalContext().deterministicAlgorithms(), key);
  Plan* plan = nullptr;
  {
    const std::lock_guard lock(mutex);
    auto found = plans.find(here);
    if (found == plans.end()) {
      auto made = std::make_unique<Plan>(call);
      if (!made->choose(call, text_of(key, device), device)) made.reset();
      found = plans.emplace(here, std::move(made)).first;
    }
    plan = found->second.get();
  }
  if (plan == nullptr) return false;
  plan->run(call, device);
  return true;
}

}  // namespace

bool product(const at::Tensor& y, const at::Tensor& x, const at::Tensor& weight,
             const ProductOptions& options) {
  if (!suits(x) || !suits(weight) || !suits(y) || !is_half(x)) return false;
  const auto& [bias, residual, gelu_of] = options;
  Call call;
  call.a = matrix_of(weight);
  call.a.transposed = true;
  call.b = matrix_of(x);
  call.c = call.d = matrix_of(y);
  if (residual.defined()) {
    if (!suits(residual) || gelu_of.defined()) return false;
    call.c = matrix_of(residual);
    call.beta = 1;
  }
  if (bias.defined()) {
    call.bias = bias.data_ptr();
    call.epilogue = BlasLt::kBias;
  }
  if (gelu_of.defined()) {
    if (!suits(gelu_of)) return false;
    call.aux = gelu_of.data_ptr();
    call.aux_stride = gelu_of.stride(0);
    call.epilogue = BlasLt::kGeluAux | (bias.defined() ? BlasLt::kBias : 0);
  }
  return run(call, x.device());
}

bool input_gradient(const at::Tensor& dx, const at::Tensor& dy, const at::Tensor& weight,
                    const at::Tensor& gelu_of) {
  if (!suits(dx) || !suits(dy) || !suits(weight) || !is_half(dy)) return false;
  Call call;
  call.a = matrix_of(weight);
  call.b = matrix_of(dy);
  call.c = call.d = matrix_of(dx);
  if (gelu_of.defined()) {
    if (!suits(gelu_of)) return false;
    call.aux = gelu_of.data_ptr();
    call.aux_stride = gelu_of.stride(0);
    call.epilogue = BlasLt::kDGelu;
  }
  return run(call, dy.device());
}

bool weight_gradient(const at::Tensor& dweight, const at::Tensor& dy, const at::Tensor& x,
                     bool add) {
  if (!suits(dweight) || !suits(dy) || !suits(x) || !is_half(dy)) return false;
  Call call;
  call.a = matrix_of(x);
  call.b = matrix_of(dy);
  call.b.transposed = true;
  call.c = call.d = matrix_of(dweight);
  call.beta = add ? 1 : 0;
  return run(call, dy.device());
}

}  // namespace trireme::cuda
