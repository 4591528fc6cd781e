// What is said about a schedule, in a line and as JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/schedule_views.h"
#include "trireme/pipeline/text.h"

namespace trireme::cli {

using pipeline::StageTimes;

std::string PricedSchedule::title() const {
  const auto several = [](int count, const char* what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : what[0] == 'm' ? "es" : "s");
  };
  const int micros = periodic ? schedule.micros / periodic->steps : schedule.micros;
  return fmt::format("{}: {}, {}{}{}", schedule.name, several(schedule.ranks(), "rank"),
                     periodic ? several(periodic->steps, "step") + " of " : "",
                     several(micros, "micro-batch"),
                     has_chunks() ? ", " + several(schedule.stages(), "stage") : "");
}

std::string PricedSchedule::figures() const {
  std::string time =
      fmt::format("bubble {:.1f} %; time {:g}", 100 * timeline.bubble(), timeline.end());
  if (periodic)
    time = fmt::format("{:g} a step in a full pipe; delays {}; versions of weights by rank: {}; {}",
                       periodic->period, fmt::join(periodic->delays, " "),
                       fmt::join(periodic->versions, " "), time);
  if (times.size() > 1) return time + " with times of each stage";
  return fmt::format("{} with F {:g}, B {:g} (I {:g}, W {:g})", time, times[0].forward,
                     times[0].backward, times[0].backward_input, times[0].backward_weight);
}

bool PricedSchedule::has_pairs() const {
  return std::ranges::any_of(schedule.programs, [](const pipeline::Program& program) {
    return std::ranges::find(program, pipeline::Join::WithNext, &pipeline::Action::join) !=
           program.end();
  });
}

core::Json json_of(const PricedSchedule& priced) {
  const auto& [schedule, times, timeline, peak_in_flight, periodic] = priced;
  core::Json json;
  json["name"] = schedule.name;
  json["ranks"] = schedule.ranks();
  json["micros"] = schedule.micros;
  json["placement"] = schedule.placement;
  json["times"] = core::Json::array();  // one for all stages, or one for each
  for (const StageTimes& one : times)
    json["times"].push_back({{"forward", one.forward},
                             {"backward", one.backward},
                             {"backward_input", one.backward_input},
                             {"backward_weight", one.backward_weight},
                             {"update", one.update}});
  json["end"] = timeline.end();
  json["bubble"] = timeline.bubble();
  json["peak_live"] = peak_in_flight;
  if (periodic) {
    json["steps"] = periodic->steps;
    json["period"] = periodic->period;
    json["delays"] = periodic->delays;
    json["versions"] = periodic->versions;
  }
  json["programs"] = core::Json::array();
  json["spans"] = core::Json::array();
  for (const auto& program : schedule.programs)
    json["programs"].push_back(pipeline::to_cells(program));
  for (const auto& spans : timeline.ranks) {
    core::Json row = core::Json::array();
    for (const auto& span : spans)
      row.push_back({{"action", to_text(span.action)}, {"begin", span.begin}, {"end", span.end}});
    json["spans"].push_back(std::move(row));
  }
  return json;
}

}  // namespace trireme::cli
