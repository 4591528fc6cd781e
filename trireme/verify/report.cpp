#include "trireme/verify/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "trireme/core/error.h"

namespace trireme::verify {

namespace {

/// JSON has no infinity; null stands for it.
core::Json number(double value) {
  return std::isfinite(value) ? core::Json(value) : core::Json();
}
double number_of(const core::Json& json) {
  return json.is_null() ? std::numeric_limits<double>::infinity() : json.get<double>();
}

std::string cell(const std::map<TensorRole, double>& of, TensorRole role, double tolerance) {
  const auto found = of.find(role);
  if (found == of.end()) return "-";
  return fmt::format("{:.1e}{}", found->second, found->second <= tolerance ? " " : "!");
}

/// The names in the order of the lines: the parameters of a layer follow its output.
std::vector<std::string> lines_of(const std::vector<Report::Row>& rows) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const Report::Row& row : rows) {
    if (row.role == TensorRole::Weight || row.role == TensorRole::Buffer ||
        row.role == TensorRole::Gradient)
      continue;
    add(row.name);
    for (const Report::Row& other : rows)
      if ((other.role == TensorRole::Weight || other.role == TensorRole::Buffer) &&
          other.name.substr(0, other.name.rfind('.')) == row.name)
        add(other.name);
  }
  for (const Report::Row& row : rows) add(row.name);
  return names;
}

}  // namespace

void add_rows(Report& report, const std::vector<ComparedTensor>& step) {
  for (const ComparedTensor& one : step) {
    const auto found = std::find_if(
        report.rows.begin(), report.rows.end(),
        [&](const Report::Row& row) { return row.role == one.role && row.name == one.name; });
    if (found == report.rows.end())
      report.rows.push_back({one.role, one.name, one.difference});
    else
      found->worst = std::max(found->worst, one.difference);
  }
}

std::string Finding::sentence() const {
  const std::string what =
      role == TensorRole::Weight && step == 1   ? fmt::format("the initial weight '{}'", name)
      : role == TensorRole::Buffer && step == 1 ? fmt::format("the initial buffer '{}'", name)
      : role == TensorRole::Weight || role == TensorRole::Buffer
          ? fmt::format("the {} '{}' after step {}", to_string(role), name, step - 1)
      : role == TensorRole::Evaluation
          ? fmt::format("the {} after step {}", to_string(role), step - 1)
      : role == TensorRole::Loss || role == TensorRole::Norm
          ? fmt::format("the {} of step {}", to_string(role), step)
      : role == TensorRole::Output
          ? fmt::format("the output of layer '{}' in step {}", name, step)
          : fmt::format("the {} '{}' of step {}", to_string(role), name, step);
  const std::string how_much =
      dtype != Dtype::Float64
          ? fmt::format("its error is {:.2g} times what rounding explains, the largest", difference)
          : fmt::format("by {:.2g} of its largest value", difference);
  return fmt::format("{} is the first that differs, {} on rank {} ({}: {})", what, how_much, rank,
                     to_string(diagnosis.kind), diagnosis.sentence);
}

Dtype dtype_of(const std::string& word) {
  std::string known;
  for (const auto& [text, dtype, built] : config::Words<Dtype>::all) {
    if (text == word) return dtype;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", text);
  }
  throw ConfigError(fmt::format("--dtype {}: must be one of {}", word, known));
}

double rounding_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::Float64: return 0x1p-53;
    case Dtype::Float32: return 0x1p-24;
    case Dtype::Float16: return 0x1p-11;
    case Dtype::BFloat16: return 0x1p-8;
  }
  return 0;
}

std::string Report::text() const {
  std::map<std::string, std::map<TensorRole, double>> by_name;
  std::size_t width = 20;
  for (const Row& row : rows) {
    by_name[row.name][row.role] = row.worst;
    width = std::max(width, row.name.size());
  }
  const char* measure = dtype != Dtype::Float64 ? "|error| / allowed" : "max|a-b| / max|b|";
  std::string text =
      fmt::format("{:<{}}  {:>9}  {:>9}  {:>9}\n", measure, width, "output", "gradient", "weight");
  for (const std::string& name : lines_of(rows)) {
    const auto& of = by_name[name];
    const bool single = of.contains(TensorRole::Input) || of.contains(TensorRole::Loss) ||
                        of.contains(TensorRole::Norm) || of.contains(TensorRole::Evaluation);
    if (single) {
      text += fmt::format("{:<{}}  {:>9}\n", of.contains(TensorRole::Norm) ? "gradient norm" : name,
                          width, cell(of, of.begin()->first, tolerance));
      continue;
    }
    text += fmt::format(
        "{:<{}}  {:>9}  {:>9}  {:>9}\n", name, width, cell(of, TensorRole::Output, tolerance),
        cell(of, TensorRole::Gradient, tolerance),
        cell(of, of.contains(TensorRole::Buffer) ? TensorRole::Buffer : TensorRole::Weight,
             tolerance));
  }
  if (!skipped.empty())
    text += fmt::format(
        "not compared (no layout of the output is declared, it is not by samples, or a pipeline is "
        "cut "
        "inside): {}\n",
        fmt::join(skipped, ", "));
  if (!not_resumed.empty())
    text += fmt::format("not proved: saving and resuming in the middle ({})\n", not_resumed);
  const std::string measured =
      dtype != Dtype::Float64
          ? fmt::format("{0} within twice the error of one rank's {0}", to_string(dtype))
          : fmt::format("float64, tolerance {:.0e}", tolerance);
  const std::string what =
      fmt::format("{} step{} of {} against one rank, {}", steps, steps == 1 ? "" : "s",
                  degrees.world() == 1 ? "one rank" : to_string(degrees), measured);
  text += same() ? fmt::format("same: {}\n", what)
                 : fmt::format("DIFFERENT: {}\n{}\n", what, first->sentence());
  if (same() && degrees.world() == 1)
    text += fmt::format(
        "One rank against one rank proves nothing about a mesh{}; use several ranks (trireme "
        "verify: "
        "mesh.replica=2; a program of yours: trireme run -n 2)\n",
        not_resumed.empty() ? ", only that it can be saved and resumed" : "");
  return text;
}

core::Json Report::json() const {
  core::Json tensors = core::Json::array();
  for (const Row& row : rows)
    tensors.push_back(
        {{"stage", to_string(row.role)}, {"name", row.name}, {"difference", number(row.worst)}});
  core::Json all = {
      {"same", same()},         {"mesh", to_string(degrees)}, {"steps", steps},
      {"tolerance", tolerance}, {"first", nullptr},           {"skipped", skipped},
      {"tensors", tensors},     {"dtype", to_string(dtype)},  {"resumed", not_resumed.empty()}};
  if (first)
    all["first"] = {{"step", first->step},          {"stage", to_string(first->role)},
                    {"name", first->name},          {"difference", number(first->difference)},
                    {"rank", first->rank},          {"kind", to_string(first->diagnosis.kind)},
                    {"sentence", first->sentence()}};
  return all;
}

std::string to_text(const Report& report) {
  const Degrees& d = report.degrees;
  core::Json rows = core::Json::array();
  for (const Report::Row& row : report.rows)
    rows.push_back({static_cast<int>(row.role), row.name, number(row.worst)});
  core::Json all = {{"degrees", {d.pipe, d.replica, d.shard, d.context, d.tensor, d.expert}},
                    {"steps", report.steps},
                    {"tolerance", report.tolerance},
                    {"dtype", static_cast<int>(report.dtype)},
                    {"rows", rows},
                    {"skipped", report.skipped},
                    {"not_resumed", report.not_resumed}};
  if (report.first) {
    const Finding& f = *report.first;
    all["first"] = {f.step,
                    static_cast<int>(f.role),
                    f.name,
                    number(f.difference),
                    f.rank,
                    static_cast<int>(f.diagnosis.kind),
                    f.diagnosis.sentence};
  }
  return all.dump();
}

Report report_of(const std::string& text) {
  const core::Json all = core::parse_json(text, "a report");
  const auto d = all.at("degrees").get<std::vector<int>>();
  Report report{.degrees = {d[0], d[1], d[2], d[3], d[4], d[5]},
                .steps = all.at("steps"),
                .dtype = static_cast<Dtype>(all.at("dtype").get<int>()),
                .tolerance = all.at("tolerance"),
                .rows = {},
                .skipped = all.at("skipped").get<std::vector<std::string>>(),
                .not_resumed = all.at("not_resumed"),
                .first = {}};
  for (const auto& row : all.at("rows"))
    report.rows.push_back({static_cast<TensorRole>(row[0].get<int>()), row[1], number_of(row[2])});
  if (all.contains("first")) {
    const auto& f = all.at("first");
    report.first = Finding{
        f[0], static_cast<TensorRole>(f[1].get<int>()),          f[2],        number_of(f[3]),
        f[4], {static_cast<MistakeKind>(f[5].get<int>()), f[6]}, report.dtype};
  }
  return report;
}

}  // namespace trireme::verify
