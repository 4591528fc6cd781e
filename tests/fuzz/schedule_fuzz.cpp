// Any text as a schedule: refused with a ScheduleError, or it comes back from its own text; and
// what verifies still does with transfers, and can be priced.
#include <cmath>
#include <string_view>

#include "fuzz/fuzz.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/price.h"
#include "trireme/pipeline/text.h"

using namespace trireme;
using namespace trireme::pipeline;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  Schedule schedule;
  try {
    schedule = parse_csv("fuzz", text);
    fuzz::must(parse_csv("fuzz", to_csv(schedule)) == schedule);
    verify(schedule);
  } catch (const ScheduleError&) {
    return 0;
  }
  verify(with_transfers(schedule));
  const Timeline timeline = price(schedule, {{}});
  fuzz::must(std::isfinite(timeline.end()) && timeline.end() > 0 && timeline.bubble() >= -1e-9);
  fuzz::must(peak_in_flight(schedule).size() == schedule.programs.size());
  return 0;
}
