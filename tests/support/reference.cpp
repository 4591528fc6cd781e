#include "support/reference.h"

#include <cstring>

namespace trireme::test {

using core::ReduceOp;

const std::vector<at::ScalarType> kDTypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                             at::kInt,   at::kLong,   at::kByte};
const std::vector<ReduceOp> kReduceOps = {ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max,
                                          ReduceOp::Min, ReduceOp::Product};

Draws::Draws(int ranks, int64_t longest, uint64_t seed) {
  for (int rank = 0; rank < ranks; ++rank) {
    auto generator = at::detail::createCPUGenerator(seed * 1000 + static_cast<uint64_t>(rank));
    reals_.push_back(at::randn({longest}, generator, at::kDouble));
  }
}

at::Tensor Draws::of(int rank, int64_t count, at::ScalarType dtype) const {
  const at::Tensor reals = reals_.at(static_cast<std::size_t>(rank)).slice(0, 0, count);
  if (dtype == at::kByte) return (reals * 1e6).to(at::kLong).remainder(256).to(at::kByte);
  if (at::isIntegralType(dtype, false)) return (reals * 1e6).to(dtype);
  return reals.to(dtype, /*non_blocking=*/false, /*copy=*/true);
}

std::vector<at::Tensor> Draws::of_all(int64_t count, at::ScalarType dtype) const {
  std::vector<at::Tensor> all;
  for (std::size_t rank = 0; rank < reals_.size(); ++rank)
    all.push_back(of(static_cast<int>(rank), count, dtype));
  return all;
}

at::Tensor Draws::whole(int rank, int64_t count, at::ScalarType dtype) const {
  const at::Tensor reals = reals_.at(static_cast<std::size_t>(rank)).slice(0, 0, count);
  return (reals * 1e4).to(at::kLong).remainder(7).to(dtype);  // 0 ... 6
}

std::vector<at::Tensor> Draws::wholes(int64_t count, at::ScalarType dtype) const {
  std::vector<at::Tensor> all;
  for (std::size_t rank = 0; rank < reals_.size(); ++rank)
    all.push_back(whole(static_cast<int>(rank), count, dtype));
  return all;
}

at::Tensor reduced(const std::vector<at::Tensor>& data, ReduceOp op) {
  const auto dtype = data.front().scalar_type();
  const bool integral = at::isIntegralType(dtype, false);
  const auto wide = integral ? at::kLong : (dtype == at::kDouble ? at::kDouble : at::kFloat);
  at::Tensor sum = data.front().to(wide);
  for (std::size_t rank = 1; rank < data.size(); ++rank) {
    const at::Tensor next = data[rank].to(wide);
    switch (op) {
      case ReduceOp::Sum:
      case ReduceOp::Mean: sum = sum + next; break;
      case ReduceOp::Max: sum = at::maximum(sum, next); break;
      case ReduceOp::Min: sum = at::minimum(sum, next); break;
      case ReduceOp::Product: sum = sum * next; break;
    }
  }
  if (op == ReduceOp::Mean) {
    // A tensor, not a number: dividing by a number may become a multiplication, which rounds
    // differently.
    const at::Tensor count = at::full_like(sum, static_cast<int64_t>(data.size()));
    sum = integral ? at::div(sum, count, "trunc") : at::div(sum, count);
  }
  return sum.to(dtype, /*non_blocking=*/false, /*copy=*/true);
}

at::Tensor marked(int rank, at::IntArrayRef shape, at::ScalarType dtype) {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  at::Tensor numbers = at::arange(count, at::kLong) + rank * 1000;
  if (dtype == at::kByte) numbers = numbers.remainder(251);
  return numbers.to(dtype).view(shape).contiguous();
}

::testing::AssertionResult same_bits(const at::Tensor& got, const at::Tensor& expected) {
  if (got.sizes() != expected.sizes() || got.scalar_type() != expected.scalar_type())
    return ::testing::AssertionFailure()
           << "got " << got.sizes() << " " << got.scalar_type() << ", expected " << expected.sizes()
           << " " << expected.scalar_type();
  const at::Tensor a = got.contiguous(), b = expected.contiguous();
  if (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0)
    return ::testing::AssertionSuccess();
  const auto* x = static_cast<const unsigned char*>(a.const_data_ptr());
  const auto* y = static_cast<const unsigned char*>(b.const_data_ptr());
  std::size_t at = 0, wrong = 0;
  for (std::size_t i = a.nbytes(); i-- > 0;) {
    if (x[i] != y[i]) at = i, ++wrong;
  }
  const auto i = static_cast<int64_t>(at / a.element_size());
  return ::testing::AssertionFailure()
         << got.sizes() << " " << got.scalar_type() << ": element " << i << " is "
         << a.flatten()[i].item().toDouble() << ", expected " << b.flatten()[i].item().toDouble()
         << " (" << wrong << " bytes differ)";
}

::testing::AssertionResult same_sum(const comm::Communicator& world, const at::Tensor& got,
                                    const at::Tensor& expected, ReduceOp op) {
  const bool integral = at::isIntegralType(got.scalar_type(), false);
  const bool exact = integral || op == ReduceOp::Max || op == ReduceOp::Min;
  if (world.backend() != "nccl" || (exact && op != ReduceOp::Mean)) return same_bits(got, expected);
  // How NCCL rounds the mean of integers is its own affair; its shape is not.
  if (integral && got.sizes() == expected.sizes()) return ::testing::AssertionSuccess();
  // A few roundings of numbers of size 10: 16-bit floats keep 11 and 8 bits.
  const double tolerance = got.scalar_type() == at::kDouble  ? 1e-12
                           : got.scalar_type() == at::kFloat ? 2e-5
                           : got.scalar_type() == at::kHalf  ? 0.03
                                                             : 0.2;
  if (got.sizes() == expected.sizes() &&
      at::allclose(got.to(at::kDouble), expected.to(at::kDouble), tolerance, tolerance))
    return ::testing::AssertionSuccess();
  return same_bits(got, expected);
}

::testing::AssertionResult same_everywhere(const comm::Communicator& group,
                                           const at::Tensor& mine) {
  const at::Tensor flat = mine.contiguous().flatten().view(at::kByte);
  const at::Tensor all = at::empty({group.size() * flat.numel()}, at::kByte);
  group.all_gather(all, flat).wait();
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto same = same_bits(all.slice(0, rank * flat.numel(), (rank + 1) * flat.numel()), flat);
    if (!same)
      return ::testing::AssertionFailure()
             << "rank " << rank << " and rank " << group.rank() << " differ: " << same.message();
  }
  return ::testing::AssertionSuccess();
}

}  // namespace trireme::test
