#include "cli/ckpt_list.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "trireme/core/error.h"
#include "trireme/core/json.h"
#include "trireme/core/units.h"
#include "trireme/format/folder.h"
#include "trireme/format/index.h"
#include "trireme/format/verify.h"

namespace trireme::cli {

namespace {

struct StepRow {
  int64_t step = 0;
  std::string state, folder;
  std::string why;  ///< where the state is not "ok"
  int64_t bytes = 0, tensors = 0, files = 0;
};

bool has_index(const std::string& folder) {
  struct stat status {};
  return ::stat((folder + "/" + format::kIndexName).c_str(), &status) == 0;
}

/// The state of a step as far as names and sizes tell.
StepRow look_at(const std::string& folder, const std::string& name) {
  StepRow row{.step = std::atoll(name.c_str() + 5), .state = "ok", .folder = folder, .why = ""};
  const auto is = [&](const char* state, std::string why) {
    row.state = state;
    row.why = std::move(why);
    return row;
  };
  if (name.find(".damaged") != name.npos) return is("put aside", folder + " was found damaged");
  if (name.find(".tmp") != name.npos)
    return is("unfinished", folder + " is being written, or was left by a crash");
  if (!has_index(folder))
    return is("unfinished", fmt::format("{} has no {}", folder, format::kIndexName));
  try {
    const format::Index index = format::read_index(folder);
    row.step = index.step;
    row.bytes = index.total_bytes();
    row.tensors = static_cast<int64_t>(index.tensors.size());
    row.files = static_cast<int64_t>(index.files.size());
    if (const auto wrong = format::wrong_name(folder, index.step)) return is("damaged", *wrong);
    const auto missing = format::find_missing(folder, index);
    return missing.empty() ? row : is("damaged", missing.front().sentence);
  } catch (const format::UnreadableError& error) {
    return is("unreadable", error.what());
  } catch (const CheckpointError& error) {
    return is("damaged", error.what());
  } catch (const ConfigError& error) {
    return is("newer", error.what());
  }
}

std::vector<StepRow> rows_of(const std::string& folder) {
  std::vector<StepRow> rows;
  if (has_index(folder)) {
    rows.push_back(look_at(folder, std::filesystem::path(folder).filename()));
  } else {
    std::error_code error;
    const std::filesystem::directory_iterator entries(folder, error);
    if (error) throw Error(fmt::format("cannot list {}: {}", folder, error.message()));
    for (const auto& entry : entries) {
      const std::string name = entry.path().filename();
      const bool is_step = name.starts_with("step-") && name.size() > 5 && std::isdigit(name[5]);
      if (is_step && entry.is_directory()) rows.push_back(look_at(entry.path(), name));
    }
  }
  std::ranges::sort(rows, {}, [](const StepRow& row) { return std::tie(row.step, row.folder); });
  return rows;
}

core::Json step_json(const StepRow& row) {
  core::Json json = {{"step", row.step}, {"state", row.state}, {"folder", row.folder}};
  if (!row.why.empty()) json["why"] = row.why;
  if (row.files == 0) return json;
  json.update({{"bytes", row.bytes},
               {"tensors", row.tensors},
               {"files", row.files},
               {"saved", time_of(row.folder)}});
  return json;
}

}  // namespace

std::string time_of(const std::string& step_folder) {
  struct stat status {};
  if (::stat((step_folder + "/" + format::kIndexName).c_str(), &status) != 0) return "?";
  std::tm local{};
  ::localtime_r(&status.st_mtime, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", local);
}

bool print_steps(const std::string& folder, Form form) {
  const auto rows = rows_of(folder);
  if (rows.empty()) return false;
  if (form == Form::Json) {
    core::Json all = core::Json::array();
    for (const StepRow& row : rows) all.push_back(step_json(row));
    fmt::print("{}\n", all.dump(2));
    return true;
  }
  fmt::print("{:>10}  {:<10}  {:>10}  {:>7}  {:>5}  {:<19}  {}\n", "step", "state", "size",
             "tensors", "files", "saved", "folder");
  for (const StepRow& row : rows) {
    if (row.state == "ok")
      fmt::print("{:>10}  {:<10}  {:>10}  {:>7}  {:>5}  {:<19}  {}\n", row.step, row.state,
                 core::format_bytes(row.bytes), row.tensors, row.files, time_of(row.folder),
                 row.folder);
    else
      fmt::print("{:>10}  {:<10}  {}\n", row.step, row.state, row.why);
  }
  return true;
}

}  // namespace trireme::cli
