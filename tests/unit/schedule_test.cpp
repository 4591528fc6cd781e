#include <gtest/gtest.h>

#include "trireme/pipeline/generators.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/text.h"

namespace trireme::pipeline {
namespace {

TEST(Schedule, EveryNameVerifies) {
  for (const auto name : names())
    for (int ranks = 1; ranks <= 6; ++ranks)
      for (int micros = 1; micros <= 14; ++micros)
        for (int stages = 1; stages <= 3; ++stages) {
          SCOPED_TRACE(std::string(name) + " " + std::to_string(ranks) + " " +
                       std::to_string(micros) + " " + std::to_string(stages));
          Schedule schedule;
          try {
            schedule = make(name, {ranks, micros, stages});
          } catch (const ScheduleError&) {
            continue;
          }
          EXPECT_NO_THROW(verify(schedule));
          const Schedule full = with_reduces(with_unshards(with_transfers(schedule)));
          EXPECT_NO_THROW(verify(full));
          EXPECT_EQ(parse_csv(full.name, to_csv(full)), full);
        }
}

}  // namespace
}  // namespace trireme::pipeline
