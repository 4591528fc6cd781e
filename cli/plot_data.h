#pragma once

#include <map>
#include <string>
#include <vector>

namespace trireme::cli {

/// One quantity of a run, step by step. Steps rise; values are finite.
struct Curve {
  std::vector<double> steps, values;
  bool empty() const { return steps.empty(); }
};

/// The numbers of metrics.jsonl, by field.
struct RunCurves {
  std::string name;  ///< as it was typed
  std::map<std::string, Curve> curves;

  /// An empty curve if the run has no such field.
  const Curve& of(const std::string& field) const;
  double last_step() const;
};

/// Reads RUN/metrics.jsonl, or RUN itself if it is a file. Lines that are not whole, as the last
/// one of a run that is being written, are passed over. Throws ConfigError if there is no such file
/// or no step in it.
RunCurves read_run(const std::string& run);

/// What one panel of a plot shows.
struct Panel {
  const char* field;
  const char* title;
  const char* unit;            ///< beside the title
  bool from_zero = false;      ///< the axis begins at 0
  const char* points = "";     ///< another field, drawn as points
  const char* reference = "";  ///< another field, drawn as a dashed line
};

/// The panels for which a run has data: loss, tokens/s, learning rate, gradient norm.
std::vector<Panel> panels_for(const std::vector<RunCurves>& runs);

/// A curve over equal ranges of steps: what hundreds of columns can show of thousands of steps.
struct Bin {
  double step, mean, lowest, highest;
};
std::vector<Bin> binned(const Curve& curve, double first, double last, int bins);

struct Extent {
  double low, high;
};
/// The steps of all runs; at least one step wide.
Extent steps_of(const std::vector<RunCurves>& runs);
/// From the lowest to the highest of what the panel draws, as means over `bins`, with a margin.
Extent values_of(const Panel& panel, const std::vector<RunCurves>& runs, int bins);

}  // namespace trireme::cli
