#pragma once

#include <string>
#include <vector>

#include "cli/plot_data.h"

namespace trireme::cli {

/// The runs as an SVG picture: a panel per quantity, a colour per run. It follows the reader's
/// light or dark theme, with its own background.
std::string draw_plot_svg(const std::vector<RunCurves>& runs);

struct BrailleOptions {
  int columns = 80;     ///< of the terminal
  bool colour = false;  ///< else runs are told apart by panels of their own
};

/// The same in characters of 2 x 4 dots.
std::string draw_plot_braille(const std::vector<RunCurves>& runs, const BrailleOptions& options);

/// What the legend says of a run: its steps and last values.
std::string summary_of(const RunCurves& run);

}  // namespace trireme::cli
