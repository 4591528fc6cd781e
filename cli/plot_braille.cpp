#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/drawing.h"
#include "cli/plot_views.h"

namespace trireme::cli {

namespace {

constexpr int kPanelRows = 9;                  // of characters in a panel
constexpr int kLabelWidth = 9, kPanelGap = 3;  // left of a panel's plot, between two panels
constexpr int kLeastWidth = 24, kTwoAbreast = 100;
constexpr std::array<const char*, 6> kAnsiInks = {"34", "33", "32", "35", "36", "31"};  // ANSI

/// Dots in characters of 2 x 4. Bit numbers of a braille character:
///
///     0 3
///     1 4
///     2 5
///     6 7
class Canvas {
 public:
  Canvas(int columns, int rows)
      : columns_(columns),
        rows_(rows),
        dots_(static_cast<std::size_t>(columns * rows)),
        inks_(dots_.size(), -1) {}

  int width() const { return 2 * columns_; }
  int height() const { return 4 * rows_; }

  void set(int x, int y, int ink) {
    if (x < 0 || y < 0 || x >= width() || y >= height()) return;
    constexpr int kBits[4][2] = {{0, 3}, {1, 4}, {2, 5}, {6, 7}};
    const auto cell = static_cast<std::size_t>(y / 4 * columns_ + x / 2);
    dots_[cell] = static_cast<uint8_t>(dots_[cell] | 1 << kBits[y % 4][x % 2]);
    inks_[cell] = ink;
  }

  void line(double x0, double y0, double x1, double y1, int ink) {
    const int steps = std::max(
        1,
        static_cast<int>(std::ceil(std::max(std::abs(x1 - x0), std::min(std::abs(y1 - y0), 4e3)))));
    for (int i = 0; i <= steps; ++i)
      set(static_cast<int>(std::lround(x0 + (x1 - x0) * i / steps)),
          static_cast<int>(std::lround(y0 + (y1 - y0) * i / steps)), ink);
  }

  std::string row(int index, bool colour) const {
    std::string text;
    for (int column = 0; column < columns_; ++column) {
      const auto cell = static_cast<std::size_t>(index * columns_ + column);
      const bool inked = colour && inks_[cell] >= 0;
      if (inked)
        text += fmt::format("\033[{}m",
                            kAnsiInks[static_cast<std::size_t>(inks_[cell]) % kAnsiInks.size()]);
      // U+2800 + bits, in UTF-8
      text += '\xe2';
      text += static_cast<char>(0xa0 | dots_[cell] >> 6);
      text += static_cast<char>(0x80 | (dots_[cell] & 0x3f));
      if (inked) text += "\033[0m";
    }
    return text;
  }

 private:
  int columns_, rows_;
  std::vector<uint8_t> dots_;
  std::vector<int> inks_;
};

/// At most eight characters.
std::string label_of_row(double value) {
  const double size = std::abs(value);
  if (size >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (size >= 1e3) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{:.3g}", size < 1e-12 ? 0 : value);
}

/// A panel as lines of the same width.
std::vector<std::string> panel_lines(const Panel& panel, const std::vector<RunCurves>& runs,
                                     int width, bool colour) {
  Canvas canvas(width - kLabelWidth, kPanelRows);
  const Extent steps = steps_of(runs);
  const Extent values = values_of(panel, runs, canvas.width());
  const auto x = [&](double step) {
    return (step - steps.low) / (steps.high - steps.low) * (canvas.width() - 1);
  };
  const auto y = [&](double value) {
    return (1 - (value - values.low) / (values.high - values.low)) * (canvas.height() - 1);
  };
  for (std::size_t run = 0; run < runs.size(); ++run) {
    const auto bins = binned(runs[run].of(panel.field), steps.low, steps.high, canvas.width());
    for (std::size_t i = 0; i < bins.size(); ++i) {
      const Bin& before = bins[i > 0 ? i - 1 : 0];
      canvas.line(x(before.step), y(before.mean), x(bins[i].step), y(bins[i].mean),
                  static_cast<int>(run));
    }
  }
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{:>{}}{:<{}}", "", kLabelWidth,
                              fmt::format("{} {}", panel.title, panel.unit), width - kLabelWidth));
  for (int row = 0; row < kPanelRows; ++row) {
    // The value in the middle of the row's dots.
    const double at =
        values.high - (values.high - values.low) * (4 * row + 1.5) / (4 * kPanelRows - 1);
    const bool labelled = row % 4 == 0;
    lines.push_back(fmt::format("{:>{}} {}", labelled ? label_of_row(at) : "", kLabelWidth - 2,
                                labelled ? "\u2524" : "\u2502") +
                    canvas.row(row, colour));
  }
  const std::string first = tick_text(std::ceil(steps.low)),
                    last = "step " + tick_text(std::floor(steps.high));
  lines.push_back(fmt::format("{:>{}}{}{:>{}}", "", kLabelWidth, first, last,
                              width - kLabelWidth - static_cast<int>(first.size())));
  return lines;
}

}  // namespace

std::string draw_plot_braille(const std::vector<RunCurves>& runs, const BrailleOptions& options) {
  std::string text;
  if (!options.colour && runs.size() > 1) {
    for (const RunCurves& run : runs)
      text += (text.empty() ? "" : "\n") + draw_plot_braille({run}, options);
    return text;
  }
  for (std::size_t run = 0; run < runs.size(); ++run)
    text += fmt::format("{}{}  {}\n",
                        options.colour ? fmt::format("\033[{}m\u2501\u2501\033[0m ",
                                                     kAnsiInks[run % kAnsiInks.size()])
                                       : "",
                        runs[run].name, summary_of(runs[run]));
  const auto panels = panels_for(runs);
  const bool two = options.columns >= kTwoAbreast;
  const int width =
      std::max(kLeastWidth, two ? (options.columns - kPanelGap) / 2 : options.columns);
  for (std::size_t i = 0; i < panels.size(); i += two ? 2 : 1) {
    const auto left = panel_lines(panels[i], runs, width, options.colour);
    const bool pair = two && i + 1 < panels.size();
    const auto right = pair ? panel_lines(panels[i + 1], runs, width, options.colour) : left;
    text += "\n";
    for (std::size_t row = 0; row < left.size(); ++row)
      text += left[row] + (pair ? std::string(kPanelGap, ' ') + right[row] : "") + "\n";
  }
  return text;
}

}  // namespace trireme::cli
