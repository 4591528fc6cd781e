#pragma once

#include <string>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/pipeline/price.h"
#include "trireme/pipeline/schedule.h"

namespace trireme::cli {

/// A schedule, and all that there is to say about it.
struct PricedSchedule {
  pipeline::Schedule schedule;
  std::vector<pipeline::StageTimes> times;  ///< one for all stages, or one of each
  pipeline::Timeline timeline;
  std::vector<int> peak_live;

  /// "1f1b: 4 ranks, 8 micro-batches"; with the stages, where ranks have several.
  std::string title() const;
  /// "bubble 27.3 %; time 33 with F 1, B 2 (I 1, W 1)".
  std::string figures() const;
  /// Does a rank hold more than one stage?
  bool has_chunks() const { return schedule.stages() > schedule.ranks(); }
  bool has_pairs() const;
};

struct GridOptions {
  int columns = 0;  ///< of the terminal; 0: as wide as it takes
  bool colour = false;
};

/// A row per rank, time from left to right, in characters.
std::string draw_grid(const PricedSchedule& priced, GridOptions options);
/// The same as a picture.
std::string draw_svg(const PricedSchedule& priced);
/// Everything, for programs.
core::Json json_of(const PricedSchedule& priced);

}  // namespace trireme::cli
