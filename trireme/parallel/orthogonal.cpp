#include "trireme/parallel/orthogonal.h"

#include <cmath>
#include <vector>

namespace trireme::parallel {

namespace {

using Column = std::vector<double>;

double dot(const Column& a, const Column& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// What is left of a column that is orthogonal to others, as a fraction of its length; below it is
/// rounding error.
constexpr double kLeast = 1e-12;

}  // namespace

void make_orthogonal(const at::Tensor& matrix) {
  const int64_t rows = matrix.size(0), count = matrix.size(1);
  const at::Tensor wide = matrix.to(at::kDouble).t().contiguous();  // a column is a row of it
  std::vector<Column> columns;
  for (int64_t c = 0; c < count; ++c) {
    double* data = wide.data_ptr<double>() + c * rows;
    Column column(data, data + rows);
    const double length = std::sqrt(dot(column, column));
    // Twice: what the first time leaves is orthogonal only up to rounding errors of what it
    // removed.
    for (int time = 0; time < 2; ++time)
      for (const Column& other : columns) {
        const double along = dot(column, other);
        for (std::size_t i = 0; i < column.size(); ++i) column[i] -= along * other[i];
      }
    const double left = std::sqrt(dot(column, column));
    const double factor = left > kLeast * length ? 1 / left : 0;
    for (std::size_t i = 0; i < column.size(); ++i) data[i] = column[i] *= factor;
    columns.push_back(std::move(column));
  }
  matrix.copy_(wide.t());
}

}  // namespace trireme::parallel
