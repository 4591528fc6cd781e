#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trireme/pipeline/generators.h"

namespace trireme::test {

/// The schedule, or nothing if the shape is refused.
inline std::optional<pipeline::Schedule> made(std::string_view name, pipeline::Shape shape) {
  try {
    return pipeline::make(name, shape);
  } catch (const ScheduleError&) {
    return std::nullopt;
  }
}

inline std::string told(std::string_view name, pipeline::Shape shape) {
  return std::string(name) + " ranks " + std::to_string(shape.ranks) + " micros " +
         std::to_string(shape.micros) + " stages " + std::to_string(shape.stages_per_rank);
}

/// Every schedule of every small shape that is not refused.
inline void for_each_schedule(const std::function<void(const pipeline::Schedule&)>& body) {
  for (const std::string_view name : pipeline::names())
    for (int ranks = 1; ranks <= 6; ++ranks)
      for (int micros = 1; micros <= 12; ++micros)
        for (int stages = 1; stages <= 3; ++stages)
          if (const auto schedule = made(name, {ranks, micros, stages})) body(*schedule);
}

inline std::string told(const pipeline::Schedule& schedule) {
  return told(schedule.name,
              {schedule.ranks(), schedule.micros, schedule.stages() / schedule.ranks()});
}

}  // namespace trireme::test
