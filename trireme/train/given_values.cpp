#include "trireme/train/given_values.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>

#include "trireme/core/error.h"
#include "trireme/exchange/start.h"
#include "trireme/format/cast.h"
#include "trireme/format/dtype.h"
#include "trireme/nn/parameters.h"
#include "trireme/ps/stored_values.h"
#include "trireme/train/first_weights.h"
#include "trireme/worker/buffer_table.h"

namespace trireme::train {

namespace {

class GivenValues final : public ps::FirstValues {
 public:
  explicit GivenValues(const config::Config& config) : config_(config) {}
  void fill(const Piece& piece, std::span<float> values) const override {
    read(piece, "F32", values.data());
  }
  void fill(const Piece& piece, std::span<double> values) const override {
    read(piece, "F64", values.data());
  }

 private:
  /// Floating-point numbers are rounded once, as where there are no servers. The lanes of a server
  /// fill their ranges at the same time.
  void read(const Piece& piece, std::string_view dtype, void* values) const {
    const std::lock_guard lock(mutex_);
    if (!from_) from_ = exchange::open_weights(config_).source;
    const auto found = from_->tensor(piece.name);
    if (!found)
      throw ConfigError(
          fmt::format("model.from = \"{}\" has no tensor '{}', which this model needs",
                      config_.model.from, piece.name));
    std::string stored(static_cast<std::size_t>(piece.count * format::dtype_bytes(found->dtype)),
                       '\0');
    from_->read(piece, found->dtype, stored.data());
    if (format::is_floating(found->dtype)) {
      format::cast(found->dtype, stored.data(), dtype, values, piece.count);
    } else {  // a count, in a table of float64
      const std::string numbers = ps::from_stored(stored, found->dtype);
      format::cast("F64", numbers.data(), dtype, values, piece.count);
    }
  }

  const config::Config config_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<format::TensorSource> from_;
};

}  // namespace

std::shared_ptr<const ps::FirstValues> given_values(const config::Config& config) {
  return std::make_shared<GivenValues>(config);
}

void check_given_values(const config::Config& config, const nn::ModelImpl& whole) {
  std::set<std::string> needed;
  for (const nn::Parameter& one : nn::parameters_of(whole)) needed.insert(one.name);
  for (const auto& item : whole.named_buffers()) needed.insert(ps::kBufferPrefix + item.key());
  check_names(config, needed, exchange::open_weights(config).names);
}

}  // namespace trireme::train
