#include "cli/confusion_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace trireme::cli {

namespace {

constexpr double kCell = 38, kSmallCell = 9;
constexpr double kCornerX = 78, kCornerY = 92, kEdge = 74, kFoot = 26;
constexpr int64_t kMostNumbered = 20;

/// From the page to a dark blue; of errors to a dark orange.
std::string shade_of(double part, bool right) {
  const int page[] = {252, 252, 250}, blue[] = {0, 84, 150}, orange[] = {196, 70, 0};
  const double depth = std::sqrt(part);  // a few errors of many show, too
  std::string text = "#";
  for (int i = 0; i < 3; ++i)
    text += fmt::format(
        "{:02x}",
        static_cast<int>(std::lround(page[i] + depth * ((right ? blue : orange)[i] - page[i]))));
  return text;
}

}  // namespace

std::string draw_confusions(const at::Tensor& counts) {
  const int64_t classes = counts.size(0);
  const bool numbered = classes <= kMostNumbered;
  const double cell = numbered ? kCell : kSmallCell;
  const double side = cell * static_cast<double>(classes);
  const double width = std::max(kCornerX + side + kEdge, 330.0), height = kCornerY + side + kFoot;
  std::string out;
  const auto put = [&](fmt::string_view text, const auto&... args) {
    fmt::vformat_to(std::back_inserter(out), text, fmt::make_format_args(args...));
  };
  const auto all = counts.contiguous();
  const auto at = [&](int64_t row, int64_t column) {
    return all.const_data_ptr<int64_t>()[row * classes + column];
  };
  const auto right = counts.diagonal().sum().item<int64_t>(), sum = counts.sum().item<int64_t>();
  put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"11\" "
      "fill=\"#1c2430\">\n<rect x=\"0.5\" y=\"0.5\" width=\"{2:.0f}\" height=\"{3:.0f}\" rx=\"8\" "
      "fill=\"#fcfcfa\" stroke=\"#d5d8dc\"/>\n",
      width, height, width - 1, height - 1);
  put("<text x=\"16\" y=\"28\" font-size=\"15\" font-weight=\"bold\">confusions</text>"
      "<text x=\"16\" y=\"47\" fill=\"#4a5563\">{} of {} right, {:.2f} %</text>\n",
      right, sum, sum > 0 ? 100.0 * static_cast<double>(right) / static_cast<double>(sum) : 0.0);
  put("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#4a5563\">taken for</text>"
      "<text transform=\"translate(24 {:.1f}) rotate(-90)\" text-anchor=\"middle\" "
      "fill=\"#4a5563\">true class</text>\n",
      kCornerX + side / 2, kCornerY - 24, kCornerY + side / 2);
  for (int64_t row = 0; row < classes; ++row) {
    int64_t of_row = 0;
    for (int64_t column = 0; column < classes; ++column) of_row += at(row, column);
    const double y = kCornerY + cell * static_cast<double>(row);
    for (int64_t column = 0; column < classes; ++column) {
      const int64_t count = at(row, column);
      const double part = of_row > 0 ? static_cast<double>(count) / static_cast<double>(of_row) : 0;
      const double x = kCornerX + cell * static_cast<double>(column);
      put("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
          "stroke=\"#e1e4e8\" stroke-width=\"0.6\"><title>class {} taken for {}: "
          "{}</title></rect>\n",
          x, y, cell, cell, shade_of(part, row == column), row, column, count);
      if (numbered && count > 0)
        put("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" font-size=\"10\" "
            "fill=\"{}\">{}</text>\n",
            x + cell / 2, y + cell / 2 + 4, part > 0.3 ? "#ffffff" : "#1c2430", count);
    }
    const bool labelled = numbered || row % 10 == 0;
    if (!labelled) continue;
    const double middle = cell * (static_cast<double>(row) + 0.5);
    put("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"#4a5563\">{:.1f} %</text>\n",
        kCornerX - 8, kCornerY + middle + 4, row, kCornerX + middle, kCornerY - 8, row,
        kCornerX + side + 8, kCornerY + middle + 4,
        of_row > 0 ? 100.0 * static_cast<double>(at(row, row)) / static_cast<double>(of_row) : 0.0);
  }
  return out + "</svg>\n";
}

}  // namespace trireme::cli
