#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/drawing.h"
#include "cli/plot_views.h"
#include "trireme/core/error.h"
#include "trireme/core/terminal.h"
#include "trireme/format/file.h"

namespace trireme::cli {

namespace {

constexpr const char* kPlotPurpose =
    "Draws how runs went: loss, speed, learning rate and gradient norm, from metrics.jsonl. A run\n"
    "that is still going on is drawn as far as it is.";

constexpr const char* kPlotExamples =
    "  trireme plot runs/gpt-small                              in the terminal\n"
    "  trireme plot runs/gpt-small runs/other --out runs.svg    a picture\n\n"
    "RUN is the folder of a run (run.dir), or a metrics.jsonl. Of many steps the picture shows "
    "the\n"
    "mean of every two pixels as a line, and their lowest and highest as a band.\n";

constexpr int kUsualColumns = 80;  // where there is no terminal

}  // namespace

int plot_command(const std::vector<std::string>& args) {
  Arguments arguments("trireme plot", kPlotPurpose);
  arguments.usage("RUN... [--out FILE.svg]");
  arguments.footer(kPlotExamples);
  std::string out;
  arguments.value("--out", out, "write an SVG picture to this file instead");
  const auto words = arguments.parse_anywhere(args);
  if (words.empty())
    throw ConfigError(
        "no run was named: 'trireme plot runs/gpt-small' draws the one in that folder");
  if (!out.empty() && !out.ends_with(".svg"))
    throw ConfigError(fmt::format("--out {}: the picture is an SVG; name a file.svg", out));
  std::vector<RunCurves> runs;
  for (const std::string& word : words) runs.push_back(read_run(word));
  if (panels_for(runs).empty())
    throw ConfigError(fmt::format("{} has neither loss nor speed nor any other number to draw",
                                  runs.front().name));
  if (!out.empty()) {
    format::write_file(out, draw_plot_svg(runs));
    fmt::print("{}: {} run{}\n", out, runs.size(), runs.size() == 1 ? "" : "s");
    return 0;
  }
  const int columns = terminal_columns();
  fmt::print("{}", draw_plot_braille(runs, {.columns = columns > 0 ? columns : kUsualColumns,
                                            .colour = core::shows_colour(STDOUT_FILENO)}));
  return 0;
}

}  // namespace trireme::cli
