#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "cli/drawing.h"
#include "cli/plot_views.h"

namespace trireme::cli {

namespace {

//   title
//   [#] runs/a  1200 steps, loss 3.5794 ...           kLegendRow each
//   loss nats                  speed tokens/s
//   |\.___                     |------                panels: kPlotWidth x kPlotHeight inside
//   +--------                  +--------
//   learning rate              gradient norm
constexpr double kPageMargin = 20, kTitleEnd = 46, kLegendRow = 20, kLegendEnd = 12;
constexpr double kPlotWidth = 392, kPlotHeight = 188;
constexpr double kPanelLeft = 58, kPanelRight = 14, kPanelAbove = 30,
                 kPanelBelow = 40;  // around a panel's plot
constexpr double kPanelWidth = kPanelLeft + kPlotWidth + kPanelRight;
constexpr double kPanelHeight = kPanelAbove + kPlotHeight + kPanelBelow;
constexpr int kBins = 196;        // of two pixels
constexpr int kMostPoints = 160;  // a curve of few steps is drawn step by step, without a band

/// Told apart by people who do not see red and green, on light and on dark (after Okabe and Ito).
struct RunInk {
  const char *light, *dark;
};
constexpr std::array<RunInk, 8> kRunInks = {{{"#0067b1", "#5eb1f2"},
                                             {"#d1540a", "#ff9650"},
                                             {"#00805e", "#3fcfa0"},
                                             {"#b0488a", "#ef92c8"},
                                             {"#8a6d00", "#e3c340"},
                                             {"#5b4bc4", "#a79bff"},
                                             {"#b3261e", "#ff8078"},
                                             {"#4a5563", "#b7c0cc"}}};

class PlotPicture {
 public:
  explicit PlotPicture(const std::vector<RunCurves>& runs)
      : runs_(runs), panels_(panels_for(runs)), steps_(steps_of(runs)) {}

  std::string draw() {
    open();
    for (std::size_t i = 0; i < panels_.size(); ++i) panel(i);
    put("</svg>\n");
    return std::move(out_);
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), text, std::forward<Args>(args)...);
  }

  double legend_end() const {
    return kTitleEnd + kLegendRow * static_cast<double>(runs_.size()) + kLegendEnd;
  }
  std::size_t columns() const { return panels_.size() > 1 ? 2 : 1; }

  void open() {
    const auto rows = static_cast<double>((panels_.size() + columns() - 1) / columns());
    const double width = 2 * kPageMargin + kPanelWidth * static_cast<double>(columns());
    const double height = legend_end() + rows * kPanelHeight + 8;
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
        "width=\"{0:.0f}\" height=\"{1:.0f}\" font-family=\"DejaVu Sans, Verdana, sans-serif\" "
        "font-size=\"11\">\n",
        width, height);
    style();
    put("<title>{}</title>\n", xml_escaped(title()));
    put("<rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{:.0f}\" height=\"{:.0f}\" rx=\"8\"/>\n",
        width - 1, height - 1);
    put("<text x=\"{}\" y=\"30\" font-size=\"15\" font-weight=\"bold\">{}</text>\n", kPageMargin,
        xml_escaped(title()));
    for (std::size_t i = 0; i < runs_.size(); ++i) legend(i);
  }

  /// The light colours, and the dark ones for readers who ask for them.
  void style() {
    put("<style>text{{fill:#1c2430}}.faint{{fill:#4a5563}}.page{{fill:#fcfcfa;stroke:#d5d8dc}}"
        ".grid{{stroke:#e1e4e8}}.axis{{stroke:#8a929c}}.reference{{stroke:#6b7480}}");
    for (std::size_t i = 0; i < kRunInks.size(); ++i)
      put(".r{0}{{color:{1}}}", i, kRunInks[i].light);
    put("@media (prefers-color-scheme:dark){{text{{fill:#e6e9ed}}.faint{{fill:#a9b2bd}}"
        ".page{{fill:#171b21;stroke:#343b45}}.grid{{stroke:#2b323b}}.axis{{stroke:#76808c}}"
        ".reference{{stroke:#98a2ae}}");
    for (std::size_t i = 0; i < kRunInks.size(); ++i)
      put(".r{0}{{color:{1}}}", i, kRunInks[i].dark);
    put("}}</style>\n");
  }

  std::string title() const {
    return runs_.size() == 1 ? runs_.front().name : fmt::format("{} runs", runs_.size());
  }

  void legend(std::size_t run) {
    const double y = kTitleEnd + kLegendRow * static_cast<double>(run);
    put("<g class=\"r{0}\"><path d=\"M{1} {2:.1f}h22\" stroke=\"currentColor\" "
        "stroke-width=\"3\" stroke-linecap=\"round\"/></g>"
        "<text x=\"{3}\" y=\"{4:.1f}\">{5}<tspan class=\"faint\" dx=\"8\">{6}</tspan></text>\n",
        run % kRunInks.size(), kPageMargin + 1, y + 8, kPageMargin + 32, y + 12,
        runs_.size() == 1 ? "" : xml_escaped(runs_[run].name), xml_escaped(summary_of(runs_[run])));
  }

  double x(double step) const {
    return left_ + (step - steps_.low) / (steps_.high - steps_.low) * kPlotWidth;
  }
  double y(double value) const {
    return top_ + kPlotHeight - (value - values_.low) / (values_.high - values_.low) * kPlotHeight;
  }

  void panel(std::size_t index) {
    const Panel& one = panels_[index];
    values_ = values_of(one, runs_, kBins);
    left_ = kPageMargin + kPanelLeft + kPanelWidth * static_cast<double>(index % columns());
    top_ = legend_end() + kPanelAbove + kPanelHeight * static_cast<double>(index / columns());
    put("<clipPath id=\"p{}\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/></clipPath>\n",
        index, left_ - 1, top_ - 1, kPlotWidth + 2, kPlotHeight + 2);
    put("<text x=\"{}\" y=\"{}\" font-size=\"12\" font-weight=\"bold\">{}"
        "<tspan class=\"faint\" font-weight=\"normal\" font-size=\"11\" dx=\"6\">{}</tspan>"
        "</text>\n",
        left_, top_ - 10, one.title, subtitle(one));
    axes();
    put("<g clip-path=\"url(#p{})\" fill=\"none\" stroke-linejoin=\"round\">\n", index);
    for (std::size_t run = 0; run < runs_.size(); ++run) curve(one, run);
    put("</g>\n<g fill=\"none\">\n");
    for (std::size_t run = 0; run < runs_.size(); ++run) marks(one, run);
    put("</g>\n");
  }

  std::string subtitle(const Panel& panel) const {
    std::string text = panel.unit;
    const auto has = [&](const char* field) {
      return std::ranges::any_of(runs_, [&](const auto& run) { return !run.of(field).empty(); });
    };
    if (has(panel.points)) text += "; circles: evaluation";
    if (has(panel.reference)) text += "; dashed: lowest possible";
    return text;
  }

  void axes() {
    for (const double tick : nice_ticks(values_.low, values_.high, 6))
      put("<path class=\"grid\" d=\"M{0} {1:.1f}h{2}\"/>"
          "<text class=\"faint\" x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
          left_, y(tick), kPlotWidth, left_ - 7, y(tick) + 4, tick_text(tick));
    const double bottom = top_ + kPlotHeight;
    for (const double tick : nice_ticks(steps_.low, steps_.high, 6)) {
      if (tick != static_cast<double>(static_cast<int64_t>(tick))) continue;  // half a step
      put("<path class=\"axis\" d=\"M{0:.1f} {1}v4\"/>"
          "<text class=\"faint\" x=\"{0:.1f}\" y=\"{2}\" text-anchor=\"middle\">{3}</text>\n",
          x(tick), bottom, bottom + 16, tick_text(tick));
    }
    put("<path class=\"axis\" fill=\"none\" d=\"M{} {}v{}h{}\"/>"
        "<text class=\"faint\" x=\"{}\" y=\"{}\" text-anchor=\"end\">step</text>\n",
        left_, top_, kPlotHeight, kPlotWidth, left_ + kPlotWidth, bottom + 30);
  }

  /// A band from the lowest to the highest of every two pixels, and their means as a line.
  void curve(const Panel& panel, std::size_t run) {
    const Curve& all = runs_[run].of(panel.field);
    const bool few = all.steps.size() <= static_cast<std::size_t>(kMostPoints);
    const auto bins = binned(all, steps_.low, steps_.high, few ? 1 << 20 : kBins);
    put("<g class=\"r{}\" stroke=\"currentColor\">\n", run % kRunInks.size());
    if (!few) band(bins);
    if (bins.size() == 1)
      put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"currentColor\"/>\n", x(bins[0].step),
          y(bins[0].mean));
    line(bins, "stroke-width=\"1.7\"");
    put("</g>\n");
  }

  /// What lies over all curves: the reference and the points.
  void marks(const Panel& panel, std::size_t run) {
    put("<g class=\"r{}\" stroke=\"currentColor\">\n", run % kRunInks.size());
    line(binned(runs_[run].of(panel.reference), steps_.low, steps_.high, kBins),
         "class=\"reference\" stroke-width=\"1.3\" stroke-dasharray=\"5 4\"");
    const Curve& points = runs_[run].of(panel.points);
    for (std::size_t i = 0; i < points.steps.size(); ++i)
      put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\" class=\"page\" "
          "style=\"stroke:currentColor;stroke-width:1.6\"/>\n",
          x(points.steps[i]), y(points.values[i]));
    put("</g>\n");
  }

  void band(const std::vector<Bin>& bins) {
    put("<path fill=\"currentColor\" fill-opacity=\"0.17\" stroke=\"none\" d=\"M");
    for (const Bin& bin : bins) put("{:.1f} {:.1f} ", x(bin.step), y(bin.highest));
    for (auto bin = bins.rbegin(); bin != bins.rend(); ++bin)
      put("{:.1f} {:.1f} ", x(bin->step), y(bin->lowest));
    put("z\"/>\n");
  }

  void line(const std::vector<Bin>& bins, const char* look) {
    if (bins.size() < 2) return;
    put("<path {} d=\"M", look);
    for (const Bin& bin : bins) put("{:.1f} {:.1f} ", x(bin.step), y(bin.mean));
    put("\"/>\n");
  }

  const std::vector<RunCurves>& runs_;
  std::vector<Panel> panels_;
  Extent steps_;
  Extent values_{};            // of the panel that is being drawn
  double left_ = 0, top_ = 0;  // of its plot
  std::string out_;
};

}  // namespace

std::string draw_plot_svg(const std::vector<RunCurves>& runs) {
  return PlotPicture(runs).draw();
}

std::string summary_of(const RunCurves& run) {
  std::string text = fmt::format("{:.0f} steps", run.last_step());
  const auto tell = [&](const char* field, const char* before, const char* after) {
    const Curve& curve = run.of(field);
    if (!curve.empty()) text += fmt::format(", {}{:.4f}{}", before, curve.values.back(), after);
  };
  tell("loss", "loss ", "");
  tell("eval_loss", "eval ", "");
  tell("floor", "floor ", "");
  if (const Curve& speed = run.of("tokens_per_s"); !speed.empty()) {
    std::vector<double> sorted = speed.values;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    text += fmt::format(", {} tokens/s", tick_text(*middle));
  }
  return text;
}

}  // namespace trireme::cli
