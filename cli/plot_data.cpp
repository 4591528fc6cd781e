#include "cli/plot_data.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>

#include "trireme/core/error.h"
#include "trireme/core/json.h"

namespace trireme::cli {

namespace {

constexpr Panel kPanels[] = {
    {.field = "loss", .title = "loss", .unit = "nats", .points = "eval_loss", .reference = "floor"},
    {.field = "tokens_per_s", .title = "speed", .unit = "tokens/s", .from_zero = true},
    {.field = "lr", .title = "learning rate", .unit = "", .from_zero = true},
    {.field = "grad_norm", .title = "gradient norm", .unit = "before clipping", .from_zero = true}};

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

/// Adds a step to a curve. A run that was resumed may have written a step twice: the later counts.
void add(Curve& curve, double step, double value) {
  while (!curve.steps.empty() && curve.steps.back() >= step) {
    curve.steps.pop_back();
    curve.values.pop_back();
  }
  curve.steps.push_back(step);
  curve.values.push_back(value);
}

void include(Extent& extent, double value) {
  extent.low = std::min(extent.low, value);
  extent.high = std::max(extent.high, value);
}

}  // namespace

const Curve& RunCurves::of(const std::string& field) const {
  static const Curve none;
  const auto found = curves.find(field);
  return found == curves.end() ? none : found->second;
}

double RunCurves::last_step() const {
  double last = 0;
  for (const auto& [field, curve] : curves)
    if (!curve.empty()) last = std::max(last, curve.steps.back());
  return last;
}

RunCurves read_run(const std::string& run) {
  const std::string path = is_folder(run) ? run + "/metrics.jsonl" : run;
  std::ifstream in(path);
  if (!in)
    throw ConfigError(fmt::format("cannot read {}: {}; name the folder of a run (its run.dir)",
                                  path, core::errno_text(errno)));
  RunCurves read{.name = run, .curves = {}};
  while (read.name.size() > 1 && read.name.ends_with('/')) read.name.pop_back();
  for (std::string line; std::getline(in, line);) {
    const auto json = core::Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number()) continue;
    const auto step = json["step"].get<double>();
    for (const auto& [field, value] : json.items())
      if (value.is_number() && std::isfinite(value.get<double>()))
        add(read.curves[field], step, value.get<double>());
  }
  if (read.curves.empty())
    throw ConfigError(fmt::format("{} has no line of a step that could be drawn", path));
  return read;
}

std::vector<Panel> panels_for(const std::vector<RunCurves>& runs) {
  std::vector<Panel> shown;
  for (const Panel& panel : kPanels)
    if (std::ranges::any_of(runs,
                            [&](const RunCurves& run) { return !run.of(panel.field).empty(); }))
      shown.push_back(panel);
  return shown;
}

std::vector<Bin> binned(const Curve& curve, double first, double last, int bins) {
  std::vector<Bin> all;
  const double width = (last - first) / bins;
  int current = -1;
  double count = 0;
  for (std::size_t i = 0; i < curve.steps.size(); ++i) {
    const double value = curve.values[i];
    const int bin = std::clamp(static_cast<int>((curve.steps[i] - first) / width), 0, bins - 1);
    if (bin != current) {
      all.push_back({0, 0, value, value});
      current = bin;
      count = 0;
    }
    Bin& one = all.back();
    ++count;
    one.step += (curve.steps[i] - one.step) / count;
    one.mean += (value - one.mean) / count;
    one.lowest = std::min(one.lowest, value);
    one.highest = std::max(one.highest, value);
  }
  return all;
}

Extent steps_of(const std::vector<RunCurves>& runs) {
  Extent steps{std::numeric_limits<double>::max(), 0};
  for (const RunCurves& run : runs)
    for (const auto& [field, curve] : run.curves)
      if (!curve.empty()) {
        include(steps, curve.steps.front());
        include(steps, curve.steps.back());
      }
  if (steps.high <= steps.low) steps = {steps.low - 0.5, steps.low + 0.5};
  return steps;
}

Extent values_of(const Panel& panel, const std::vector<RunCurves>& runs, int bins) {
  const Extent steps = steps_of(runs);
  Extent values{std::numeric_limits<double>::max(), std::numeric_limits<double>::lowest()};
  for (const RunCurves& run : runs) {
    for (const Bin& bin : binned(run.of(panel.field), steps.low, steps.high, bins))
      include(values, bin.mean);
    for (const char* field : {panel.points, panel.reference})
      for (const double value : run.of(field).values) include(values, value);
  }
  if (panel.from_zero) include(values, 0);
  double margin = 0.06 * (values.high - values.low);
  if (margin == 0) margin = values.high == 0 ? 1 : 0.1 * std::abs(values.high);
  const bool begins_at_zero = panel.from_zero && values.low == 0;
  return {begins_at_zero ? 0 : values.low - margin, values.high + margin};
}

}  // namespace trireme::cli
