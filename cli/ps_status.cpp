#include "cli/ps_status.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "trireme/core/json.h"
#include "trireme/core/units.h"

namespace trireme::cli {

namespace {

using core::Json;

std::string job_line(const Json& job) {
  const auto generation = job.at("generation").get<int64_t>();
  const auto snapshot = job.at("snapshot").get<int64_t>();
  return fmt::format("job {}: {} of {} steps done, {} of {} tasks, {}, generation {}\n",
                     job.at("job").get<std::string>(), job.at("steps_done").get<int64_t>(),
                     job.at("steps").get<int64_t>(), job.at("tasks").at("done").get<int64_t>(),
                     job.at("tasks").at("all").get<int64_t>(),
                     snapshot == 0 ? "no snapshot" : fmt::format("snapshot {}", snapshot),
                     generation);
}

std::string state_of(const Json& node) {
  if (node.at("lives").get<bool>()) return node.contains("leaves") ? "leaves" : "lives";
  return "gone";
}

std::string silence_of(const Json& node) {
  return node.contains("silent_ms") ? fmt::format("{} ms", node["silent_ms"].get<int64_t>()) : "-";
}

std::string server_row(const Json& node) {
  std::string row = fmt::format("{:<11} {:>5} {:<7} {:>9}", node.at("name").get<std::string>(),
                                node.at("life").get<int64_t>(), state_of(node), silence_of(node));
  if (!node.contains("figures")) return row + "\n";
  const Json& figures = node["figures"];
  return row +
         fmt::format(" {:>10} {:>9} {:>9.1f} {:>9.1f} {:>7} {:>8} {:>8}\n",
                     core::format_bytes(figures.at("bytes").get<int64_t>()),
                     figures.at("rows").get<int64_t>(), figures.at("pushes_per_s").get<double>(),
                     figures.at("pulls_per_s").get<double>(), figures.at("behind").get<int64_t>(),
                     figures.at("refused").get<int64_t>(), figures.at("pid").get<int64_t>());
}

std::string worker_row(const Json& node, int64_t furthest) {
  const auto clock = node.at("clock").get<int64_t>();
  return fmt::format("{:<11} {:>5} {:<7} {:>9} {:>10} {:>9} {:>9}\n",
                     node.at("name").get<std::string>(), node.at("life").get<int64_t>(),
                     state_of(node), silence_of(node), clock, furthest - clock,
                     node.contains("task") ? node["task"].dump() : "-");
}

/// Consecutive ranges that the same servers hold are one line: "0-7 epoch 3: server 1, 0".
std::string range_lines(const Json& ranges) {
  const auto holders = [](const Json& range) {
    std::vector<int64_t> chain = range.at("chain");
    std::string text = fmt::format("epoch {}: ", range.at("epoch").get<int64_t>());
    text += chain.empty() ? "nobody" : fmt::format("server {}", fmt::join(chain, ", "));
    if (range.contains("joins"))
      text += fmt::format("; server {} joins", range["joins"].get<int64_t>());
    return text;
  };
  std::string text;
  for (size_t first = 0; first < ranges.size();) {
    size_t next = first + 1;
    while (next < ranges.size() && holders(ranges[next]) == holders(ranges[first])) ++next;
    const std::string numbers =
        next - first == 1 ? fmt::format("{}", first) : fmt::format("{}-{}", first, next - 1);
    text += fmt::format("{:<11} {}\n", numbers, holders(ranges[first]));
    first = next;
  }
  return text;
}

}  // namespace

std::string status_screen(const std::string& json) {
  const Json job = core::parse_json(json, "the manager's answer");
  std::string servers, workers;
  int64_t furthest = 0;
  for (const Json& node : job.at("nodes"))
    furthest = std::max(furthest, node.value("clock", int64_t{0}));
  for (const Json& node : job.at("nodes")) {
    if (node.contains("clock"))
      workers += worker_row(node, furthest);
    else
      servers += server_row(node);
  }
  std::string screen = job_line(job);
  screen += fmt::format("\n{:<11} {:>5} {:<7} {:>9} {:>10} {:>9} {:>9} {:>9} {:>7} {:>8} {:>8}\n{}",
                        "server", "life", "state", "silent", "memory", "rows", "pushes/s",
                        "pulls/s", "behind", "refused", "pid", servers);
  screen += fmt::format("\n{:<11} {:>5} {:<7} {:>9} {:>10} {:>9} {:>9}\n{}", "worker", "life",
                        "state", "silent", "clock", "lag", "task", workers);
  return screen + fmt::format("\n{:<11} held by\n{}", "ranges", range_lines(job.at("ranges")));
}

}  // namespace trireme::cli
