#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/pipeline/price.h"
#include "trireme/pipeline/schedule.h"

namespace trireme::cli {

/// What is special of steps that follow each other without draining the pipe.
struct PeriodFigures {
  int steps = 0;
  double period = 0;          ///< how long a step takes once the pipe is full
  std::vector<int> delays;    ///< of each stage, in updates
  std::vector<int> versions;  ///< of the weights that each rank keeps, at most
};

/// A schedule with its timeline and figures.
struct PricedSchedule {
  pipeline::Schedule schedule;
  std::vector<pipeline::StageTimes> times;  ///< one for all stages, or one for each
  pipeline::Timeline timeline;
  std::vector<int> peak_in_flight;
  std::optional<PeriodFigures> periodic = {};

  /// "1f1b: 4 ranks, 8 micro-batches"; also the number of stages, where ranks have several.
  std::string title() const;
  /// "bubble 27.3 %; time 33 with F 1, B 2 (I 1, W 1)".
  std::string figures() const;
  /// Whether a rank has more than one stage.
  bool has_chunks() const { return schedule.stages() > schedule.ranks(); }
  bool has_pairs() const;
};

struct GridOptions {
  int columns = 0;  ///< of the terminal; 0: unlimited
  bool colour = false;
};

/// A row per rank, time from left to right, in characters.
std::string draw_grid(const PricedSchedule& priced, GridOptions options);
/// The same as an SVG picture.
std::string draw_svg(const PricedSchedule& priced);
/// Everything as JSON.
core::Json json_of(const PricedSchedule& priced);

}  // namespace trireme::cli
