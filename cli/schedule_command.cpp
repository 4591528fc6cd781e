#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/drawing.h"
#include "cli/schedule_views.h"
#include "trireme/core/terminal.h"
#include "trireme/pipeline/generators.h"
#include "trireme/pipeline/passes.h"
#include "trireme/pipeline/periodic.h"
#include "trireme/pipeline/text.h"

namespace trireme::cli {

namespace {

using pipeline::Schedule;
using pipeline::StageTimes;

constexpr const char* kSchedulePurpose =
    "Draws a pipeline schedule: which rank computes which micro-batch when, how long ranks are\n"
    "idle, and how many micro-batches each rank has in flight. Runs nothing and does not load "
    "torch.";

constexpr const char* kScheduleFooter =
    R"(NAME is one of these, or a file with a schedule of your own (PyTorch's CSV, a row per rank):

  gpipe          all forwards, then all backwards: the simplest; every micro-batch stays in flight
  1f1b           as fast, but at most P in flight: a good first choice
  interleaved    several stages per rank: V times less idle time, V times the transfers
  looped-bfs     several stages per rank, one after the other: for weights that are sharded
  zb-h1          backward in two halves: a third of 1f1b's idle time; P in flight on every rank
  zb-v           two stages per rank in a V: idle only at the start if F, I and W take equal time
  dualpipe-v     two stages per rank in a V: transfers hide behind overlapped pairs
  pipedream      never drains, updates after every backward: several weight versions
  pipedream-2bw  never drains, updates every P micro-batches: two weight versions

The last two as they train: --steps T draws T steps of M micro-batches, with one update each, and
gives the time of a step once the pipe is full, the delays, and the versions of the weights.

Times are of one stage, in any unit: F forward, B the whole backward, W its weight half (so that
the input half is B - W), U an update (0). An overlapped pair takes as long as its two parts.

  trireme schedule 1f1b --ranks 4 --micros 8
  trireme schedule interleaved --ranks 4 --micros 8 --stages-per-rank 2 --times 1,2.2,1
  trireme schedule zb-v --ranks 8 --micros 32 --format svg > zb-v.svg
  trireme schedule pipedream-2bw --ranks 2 --micros 4 --steps 3
  trireme schedule 1f1b --ranks 2 --micros 4 --format text > mine.csv    # edit it, and then
  trireme schedule mine.csv                                              # check and draw it

Exit codes: 0 drawn; 2 usage, or an invalid schedule, with the action that is wrong.)";

struct ScheduleRequest {
  std::string name, format = "grid", times = "1,2,1";
  int ranks = 0, micros = 0, stages_per_rank = 0, steps = 0;  ///< 0: not given
  bool vertical_sync = false;
};

ScheduleRequest parse_request(const std::vector<std::string>& args) {
  ScheduleRequest wanted;
  std::string ranks, micros, stages, steps;
  Arguments arguments("trireme schedule", kSchedulePurpose);
  arguments.usage("NAME --ranks P --micros M [OPTIONS]");
  arguments.footer(kScheduleFooter);
  arguments.value("--ranks", ranks, "how many ranks the pipeline has");
  arguments.value("--micros", micros, "how many micro-batches a step has");
  arguments.value("--stages-per-rank", stages, "of interleaved and looped-bfs (2)");
  arguments.value("--steps", steps,
                  "of pipedream and pipedream-2bw: draw so many steps, as they train");
  arguments.flag("--vertical-sync", wanted.vertical_sync,
                 "pipedream: a step uses one version of the weights on all stages");
  arguments.value("--format", wanted.format, "grid (the default), text (CSV), json or svg");
  arguments.value("--times", wanted.times,
                  "F,B,W or F,B,W,U: times of a stage's acts (1,2,1); of each: F,B,W/F,B,W/...");
  arguments.words("--format", {"grid", "text", "json", "svg"});
  const auto names = pipeline::names();
  arguments.actions({names.begin(), names.end()});
  const auto words = arguments.parse_anywhere(args);
  if (words.size() != 1)
    throw ConfigError(fmt::format(
        "{}; use one of {}, or a file ('trireme schedule --help')",
        words.empty() ? "no schedule was named" : fmt::format("unexpected '{}'", words[1]),
        fmt::join(names, ", ")));
  wanted.name = words[0];
  const auto number = [](const char* option, const std::string& text, int& target) {
    if (text.empty()) return;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), target);
    if (error != std::errc() || end != text.data() + text.size() || target < 1)
      throw ConfigError(fmt::format("{} {}: write a whole number, 1 or more", option, text));
  };
  number("--ranks", ranks, wanted.ranks);
  number("--micros", micros, wanted.micros);
  number("--stages-per-rank", stages, wanted.stages_per_rank);
  number("--steps", steps, wanted.steps);
  return wanted;
}

StageTimes parse_stage(const std::string& text) {
  std::vector<double> parts;
  const char *at = text.c_str(), *end = at + text.size();
  bool good = true;
  while (good && at <= end) {
    const auto [stop, error] = std::from_chars(at, end, parts.emplace_back());
    const bool is_update = parts.size() == 4;
    good = error == std::errc() && std::isfinite(parts.back()) && parts.back() < 1e12 &&
           (is_update ? parts.back() >= 0 : parts.back() > 0) && (stop == end || *stop == ',');
    at = stop + 1;
  }
  if (!good || parts.size() < 3 || parts.size() > 4 || parts[2] >= parts[1])
    throw ConfigError(fmt::format(
        "--times {}: write three numbers above 0, F,B,W as in 1,2,1, where W is a part of B; a "
        "fourth is the time of an update",
        text));
  return {.forward = parts[0],
          .backward = parts[1],
          .backward_input = parts[1] - parts[2],
          .backward_weight = parts[2],
          .update = parts.size() == 4 ? parts[3] : 0};
}

std::vector<StageTimes> parse_times(const std::string& text) {
  std::vector<StageTimes> times;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('/', begin), text.size());
    times.push_back(parse_stage(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return times;
}

bool is_file(const std::string& name) {
  struct stat status {};
  return ::stat(name.c_str(), &status) == 0;
}

/// Throws where an option contradicts the file.
void check_against(const Schedule& schedule, const ScheduleRequest& wanted) {
  const auto agree = [&](const char* option, int said, int has) {
    if (said != 0 && said != has)
      throw ConfigError(fmt::format("{} {}, but '{}' has {}; leave the option out", option, said,
                                    schedule.name, has));
  };
  agree("--ranks", wanted.ranks, schedule.ranks());
  agree("--micros", wanted.micros, schedule.micros);
  if (wanted.stages_per_rank != 0 && schedule.ranks() > 0 &&
      schedule.stages() != schedule.ranks() * wanted.stages_per_rank)
    throw ConfigError(fmt::format("--stages-per-rank {}, but '{}' has {} stages on {} ranks",
                                  wanted.stages_per_rank, schedule.name, schedule.stages(),
                                  schedule.ranks()));
}

Schedule find(const ScheduleRequest& wanted) {
  const auto names = pipeline::names();
  const bool known = std::ranges::find(names, wanted.name) != names.end();
  if (!known && is_file(wanted.name)) {
    Schedule schedule = pipeline::read_csv(wanted.name);
    check_against(schedule, wanted);
    return schedule;
  }
  if (!known)
    throw ConfigError(fmt::format("'{}' is neither a file nor a schedule; use one of {}",
                                  wanted.name, fmt::join(names, ", ")));
  if (wanted.ranks == 0 || wanted.micros == 0)
    throw ConfigError(
        fmt::format("{} needs --{} N", wanted.name, wanted.ranks == 0 ? "ranks" : "micros"));
  // With one stage per rank these two would be 1f1b and gpipe.
  const bool looped = wanted.name == "interleaved" || wanted.name == "looped-bfs";
  const int stages = wanted.stages_per_rank != 0 ? wanted.stages_per_rank : looped ? 2 : 1;
  return pipeline::make(wanted.name, {wanted.ranks, wanted.micros, stages});
}

/// A schedule that does not drain, as it trains.
PricedSchedule periodic(const ScheduleRequest& wanted, const std::vector<StageTimes>& times) {
  if (wanted.ranks == 0 || wanted.micros == 0)
    throw ConfigError(
        fmt::format("{} needs --{} N", wanted.name, wanted.ranks == 0 ? "ranks" : "micros"));
  const auto schedule = pipeline::make_periodic(
      wanted.name, {wanted.ranks, wanted.micros, std::max(1, wanted.stages_per_rank)},
      wanted.vertical_sync ? pipeline::VersionSync::Vertical : pipeline::VersionSync::Stage);
  verify(schedule);
  return {.schedule = unrolled(schedule, wanted.steps),
          .times = times,
          .timeline = {},
          .peak_in_flight = {},
          .periodic = PeriodFigures{.steps = wanted.steps,
                                    .period = pipeline::price_period(schedule, times),
                                    .delays = schedule.delays,
                                    .versions = pipeline::peak_versions(schedule)}};
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

int show(const ScheduleRequest& wanted) {
  const auto times = parse_times(wanted.times);
  const std::vector<std::string> formats = {"grid", "text", "json", "svg"};
  if (std::ranges::find(formats, wanted.format) == formats.end())
    throw ConfigError(fmt::format("--format {}: must be grid, text, json or svg", wanted.format));
  const Schedule one = find(wanted);
  const auto stages = static_cast<std::size_t>(one.stages());
  if (times.size() != 1 && times.size() != stages)
    throw ConfigError(fmt::format("--times {}: times of {} stages, but {} has {}", wanted.times,
                                  times.size(), one.name, stages));
  if (wanted.vertical_sync && (wanted.steps == 0 || wanted.name != "pipedream"))
    throw ConfigError("--vertical-sync goes with pipedream and --steps T");
  PricedSchedule priced =
      wanted.steps > 0 ? periodic(wanted, times) : PricedSchedule{one, times, {}, {}, {}};
  priced.timeline = pipeline::price(priced.schedule, times);
  priced.peak_in_flight = pipeline::peak_in_flight(priced.schedule);
  if (wanted.format == "text") print(pipeline::to_csv(priced.schedule));
  if (wanted.format == "json")
    print(json_of(priced).dump(-1, ' ', false, core::Json::error_handler_t::replace) + "\n");
  if (wanted.format == "svg") print(draw_svg(priced));
  if (wanted.format == "grid")
    print(draw_grid(priced,
                    {.columns = terminal_columns(), .colour = core::shows_colour(STDOUT_FILENO)}));
  return 0;
}

}  // namespace

int schedule_command(const std::vector<std::string>& args) {
  const ScheduleRequest wanted = parse_request(args);
  try {
    return show(wanted);
  } catch (const ScheduleError& error) {
    throw ConfigError(error.what());
  }
}

}  // namespace trireme::cli
