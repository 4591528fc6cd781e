#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "cli/drawing.h"
#include "cli/schedule_views.h"

namespace trireme::cli {

namespace {

using pipeline::Act;
using pipeline::Action;
using pipeline::Join;
using pipeline::Span;

//  +----------------------------------------------+
//  | title                                        |   kTop
//  | figures                                      |
//  | rank 0  [F0][F1]......[ B0 ][F2]    in flight 3 |   kRow each, kRowGap between
//  | rank 1      [F0][ B0 ]              in flight 2 |
//  |         |---|---|---|---|---|                |   the axis
//  | legend                                       |
//  +----------------------------------------------+
//     kLeft                          kRight
constexpr double kTop = 64, kRow = 26, kRowGap = 4, kLeft = 72, kRight = 100, kBottom = 70;
constexpr double kWishedBox = 24;                     // wanted width of the shortest box in pixels
constexpr double kLeastPlot = 560, kMostPlot = 8000;  // width of the whole time axis
constexpr double kLetter = 6.2;                       // width of a digit at font size 10, roughly
constexpr std::size_t kMostTips = 4000;  // tooltips; more would make the file too large

struct Colour {
  int red, green, blue;
};

/// Light and dark end of each act's shades; dark letters are readable on all of them.
struct Shades {
  Colour light, dark;
};
constexpr std::array<Shades, 4> kShades = {{
    {{168, 206, 245}, {96, 157, 219}},  // F
    {{178, 223, 160}, {111, 181, 98}},  // B
    {{152, 221, 212}, {79, 178, 169}},  // I
    {{250, 216, 137}, {230, 172, 66}},  // W
}};
constexpr std::array<std::string_view, 4> kMeanings = {"forward", "backward", "its input half",
                                                       "its weight half"};

/// The shade of the `chunk`-th of a rank's stages.
std::string fill_of(Act act, int chunk, int chunks) {
  const auto& [light, dark] = kShades[static_cast<std::size_t>(act)];
  const double part = chunks > 1 ? static_cast<double>(chunk) / (chunks - 1) : 0;
  const auto mix = [&](int a, int b) { return static_cast<int>(std::lround(a + part * (b - a))); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(light.red, dark.red), mix(light.green, dark.green),
                     mix(light.blue, dark.blue));
}

class Picture {
 public:
  explicit Picture(const PricedSchedule& priced) : priced_(priced), end_(priced.timeline.end()) {
    double shortest = std::numeric_limits<double>::max();
    for (const auto& spans : priced.timeline.ranks)
      for (const Span& span : spans)
        if (span.end > span.begin && is_compute(span.action.act)) {
          shortest = std::min(shortest, span.end - span.begin);
          ++num_boxes_;
        }
    plot_ = std::clamp(end_ / shortest * kWishedBox, kLeastPlot, kMostPlot);
    const int ranks = priced.schedule.ranks();
    axis_y_ = kTop + ranks * (kRow + kRowGap);
    chunk_of_.resize(priced.schedule.placement.size());
    for (int rank = 0; rank < ranks; ++rank) {
      int chunk = 0;
      for (const int stage : priced.schedule.stages_of(rank))
        chunk_of_[static_cast<std::size_t>(stage)] = chunk++;
      chunks_ = std::max(chunks_, chunk);
    }
  }

  std::string draw() {
    open();
    axis();
    for (int rank = 0; rank < priced_.schedule.ranks(); ++rank) row(rank);
    legend();
    put("</svg>\n");
    return std::move(out_);
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), text, std::forward<Args>(args)...);
  }

  double x(double time) const { return kLeft + time / end_ * plot_; }
  double row_y(int rank) const { return kTop + rank * (kRow + kRowGap); }

  /// The picture has its own background, so that it looks the same on a light and on a dark page.
  void open() {
    const double width = kLeft + plot_ + kRight, height = axis_y_ + kBottom;
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
        "width=\"{0:.0f}\" height=\"{1:.0f}\" font-family=\"DejaVu Sans, Verdana, sans-serif\" "
        "font-size=\"10\" fill=\"#1c2430\">\n",
        width, height);
    put("<title>{}</title>\n", xml_escaped(priced_.title()));
    put("<rect width=\"{:.0f}\" height=\"{:.0f}\" rx=\"8\" fill=\"#fcfcfa\" "
        "stroke=\"#d5d8dc\"/>\n",
        width, height);
    put("<text x=\"16\" y=\"26\" font-size=\"15\" font-weight=\"bold\">{}</text>\n",
        xml_escaped(priced_.title()));
    put("<text x=\"16\" y=\"45\" font-size=\"11\" fill=\"#4a5563\">{}</text>\n",
        xml_escaped(priced_.figures()));
  }

  void axis() {
    const double step = nice_step(end_ * 60 / plot_), bottom = axis_y_ + 2;
    for (int i = 0; i * step <= end_ * (1 + 1e-9); ++i) {
      const double at = x(i * step);
      put("<path d=\"M{0:.2f} {1}V{2}\" stroke=\"#c3c8cf\"/>"
          "<text x=\"{0:.2f}\" y=\"{3}\" text-anchor=\"middle\">{4:g}</text>\n",
          at, kTop - 4, bottom + 4, bottom + 16, i * step);
    }
    put("<path d=\"M{:.2f} {}H{:.2f}\" stroke=\"#8a929c\"/>"
        "<text x=\"16\" y=\"{}\">time</text>\n",
        x(0), bottom, x(end_), bottom + 16);
  }

  void row(int rank) {
    const double y = row_y(rank);
    put("<text x=\"16\" y=\"{:.1f}\" font-size=\"11\">rank {}</text>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\">in flight {}</text>\n",
        y + 17, rank, kLeft + plot_ + 10, y + 17,
        priced_.peak_in_flight[static_cast<std::size_t>(rank)]);
    put("<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"#e4e6e9\" "
        "fill-opacity=\"0.75\"/>\n",
        kLeft, y, plot_, kRow);
    const auto& spans = priced_.timeline.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const Span& span = spans[i];
      if (!is_compute(span.action.act) || span.end <= span.begin) continue;
      box(span, y);
      if (i > 0 && spans[i - 1].action.join == Join::WithNext) pair(spans[i - 1], span, y);
    }
    for (const Span& span : spans)  // over the boxes
      if (span.action.act == Act::Update) update(span, y);
  }

  void box(const Span& span, double y) {
    const double left = x(span.begin), width = x(span.end) - left;
    const int chunk = chunk_of_[static_cast<std::size_t>(span.action.stage)];
    put("<path d=\"M{:.2f} {}h{:.2f}v{}h-{:.2f}z\" fill=\"{}\"", left, y, width, kRow, width,
        fill_of(span.action.act, chunk, chunks_));
    if (width >= 4) put(" stroke=\"#fcfcfa\" stroke-width=\"0.8\"");
    if (num_boxes_ <= kMostTips)
      put("><title>{}, {:g} to {:g}</title></path>\n", to_text(span.action), span.begin, span.end);
    else
      put("/>\n");
    const std::string label = std::to_string(span.action.micro);
    if (width >= kLetter * static_cast<double>(label.size()) + 3)
      put("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\" "
          "pointer-events=\"none\">{}</text>\n",
          left + width / 2, y + 16.5, label);
  }

  void pair(const Span& first, const Span& second, double y) {
    put("<path d=\"M{:.2f} {}H{:.2f}V{}H{:.2f}z\" fill=\"none\" stroke=\"#1c2430\" "
        "stroke-width=\"1.2\"/>\n",
        x(first.begin), y + 0.6, x(second.end), y + kRow - 0.6, x(first.begin));
  }

  void update(const Span& span, double y) {
    put("<path d=\"M{:.2f} {}v{}\" stroke=\"#b3261e\" stroke-width=\"2\"/>\n", x(span.begin), y,
        kRow);
  }

  void legend() {
    const double y = axis_y_ + 38;
    double at = 16;
    const auto entry = [&](const std::string& mark, const std::string& meaning) {
      put("<g transform=\"translate({:.1f} {:.1f})\">{}<text x=\"20\" y=\"10.5\">{}</text></g>\n",
          at, y, mark, meaning);
      at += 36 + kLetter * static_cast<double>(meaning.size());
    };
    const auto square = [](const std::string& fill) {
      return fmt::format("<rect width=\"14\" height=\"14\" fill=\"{}\"/>", fill);
    };
    for (const Act act : {Act::Forward, Act::Backward, Act::BackwardInput, Act::BackwardWeight})
      if (priced_.schedule.has(act))
        entry(square(fill_of(act, 0, 1)),
              fmt::format("{} {}", to_string(act), kMeanings[static_cast<std::size_t>(act)]));
    if (chunks_ > 1)
      entry(square(fill_of(Act::Forward, 1, 2)), "darker: a later stage of the rank");
    if (priced_.has_pairs())
      entry(
          "<rect x=\"0.6\" y=\"0.6\" width=\"13\" height=\"13\" fill=\"none\" stroke=\"#1c2430\" "
          "stroke-width=\"1.2\"/>",
          "overlapped");
    if (priced_.schedule.has(Act::Update))
      entry("<path d=\"M7 0v14\" stroke=\"#b3261e\" stroke-width=\"2\"/>", "update");
    entry(square("#e4e6e9"), "idle");
  }

  const PricedSchedule& priced_;
  double end_, plot_ = 0, axis_y_ = 0;
  std::size_t num_boxes_ = 0;
  std::vector<int> chunk_of_;
  int chunks_ = 1;
  std::string out_;
};

}  // namespace

std::string draw_svg(const PricedSchedule& priced) {
  return Picture(priced).draw();
}

}  // namespace trireme::cli
