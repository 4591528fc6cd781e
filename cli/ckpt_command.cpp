#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>

#include "cli/arguments.h"
#include "cli/ckpt_diff.h"
#include "cli/commands.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/format/dtype.h"
#include "trireme/format/folder.h"
#include "trireme/format/index.h"
#include "trireme/format/load.h"
#include "trireme/format/verify.h"

namespace trireme::cli {

namespace {

constexpr const char* kPurpose =
    "Looks into checkpoints. Nothing is changed, and no torch is loaded.\n\n"
    "  trireme ckpt ls PATH              the steps that are there, their sizes and times\n"
    "  trireme ckpt info PATH [--json]   tensors, dtypes, shapes, pieces, and what else was saved\n"
    "  trireme ckpt verify PATH          reads every byte: sizes, checksums, completeness\n"
    "  trireme ckpt diff A B             compares two checkpoints, tensor by tensor, bit by bit";

constexpr const char* kExamples =
    "PATH is a run's folder, its checkpoints/, or one step in there; of several steps the newest\n"
    "is taken. How the tensors were cut when they were saved makes no difference to diff.\n\n"
    "  trireme ckpt ls runs/gpt\n"
    "  trireme ckpt verify runs/gpt/checkpoints/step-00000500\n"
    "  trireme ckpt diff runs/two-ranks runs/one-rank\n"
    "  trireme ckpt info runs/gpt --json | jq .extra\n\n"
    "Exit codes: 0 whole, or equal; 1 different (diff), or failed; 2 usage, or no checkpoint "
    "there;\n"
    "3 damaged (verify), with the file, the block and the tensors in it.";

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool is_step(const std::string& path) {
  struct stat status {};
  return ::stat((path + "/" + format::kIndexName).c_str(), &status) == 0;
}

std::string checked_folder(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw ConfigError(fmt::format("there is no '{}'", path));
  if (!is_folder(path))
    throw ConfigError(fmt::format(
        "'{}' is not a folder: name a run, its checkpoints/, or a step in there", path));
  return path;
}

/// The folder with the steps: PATH, or its checkpoints/.
std::string steps_folder(const std::string& path) {
  return is_folder(path + "/checkpoints") ? path + "/checkpoints" : path;
}

/// The folder of one step: PATH, or the newest in it.
std::string find_step(const std::string& typed) {
  const std::string path = checked_folder(typed);
  if (is_step(path)) return path;
  const std::string folder = steps_folder(path);
  const auto steps = format::list(folder);
  if (steps.empty())
    throw ConfigError(fmt::format("'{}' holds no finished checkpoint (none has an {})", path,
                                  format::kIndexName));
  return folder + "/" + format::step_name(steps.back());
}

int64_t total_bytes(const format::Index& index) {
  int64_t bytes = 0;
  for (const auto& [name, file] : index.files) bytes += file.bytes;
  return bytes;
}

std::string time_of(const std::string& folder) {
  struct stat status {};
  if (::stat((folder + "/" + format::kIndexName).c_str(), &status) != 0) return "?";
  std::tm local{};
  ::localtime_r(&status.st_mtime, &local);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", local);
}

void print_row(const std::string& folder) {
  try {
    const format::Index index = format::read_index(folder);
    fmt::print("{:>10}  {:>10}  {:>7}  {:>5}  {}  {}\n", index.step,
               core::format_bytes(total_bytes(index)), index.tensors.size(), index.files.size(),
               time_of(folder), folder);
  } catch (const CheckpointError& error) {
    fmt::print("{:>10}  {}\n", "damaged", error.what());
  }
}

int list_steps(const std::string& typed) {
  const std::string path = checked_folder(typed);
  std::vector<std::string> folders;
  if (is_step(path)) {
    folders.push_back(path);
  } else {
    const std::string folder = steps_folder(path);
    for (const int64_t step : format::list(folder))
      folders.push_back(folder + "/" + format::step_name(step));
  }
  if (folders.empty()) find_step(path);  // says why not
  fmt::print("{:>10}  {:>10}  {:>7}  {:>5}  {:<19}  {}\n", "step", "size", "tensors", "files",
             "saved", "folder");
  for (const std::string& folder : folders) print_row(folder);
  return 0;
}

/// The index without the checksums, which nobody reads.
core::Json info_json(const std::string& folder, const format::Index& index) {
  core::Json json = format::json_of(index);
  for (auto& file : json["files"]) file.erase("checksums");
  json["folder"] = folder;
  json["bytes"] = total_bytes(index);
  return json;
}

void print_info(const std::string& folder, const format::Index& index) {
  fmt::print("{}: step {}, {} in {} files, saved {}\n\n", folder, index.step,
             core::format_bytes(total_bytes(index)), index.files.size(), time_of(folder));
  size_t width = 6;
  for (const auto& [name, tensor] : index.tensors) width = std::max(width, name.size());
  fmt::print("{:<{}}  {:<5}  {:>6}  {}\n", "tensor", width, "dtype", "pieces", "shape");
  for (const auto& [name, tensor] : index.tensors)
    fmt::print("{:<{}}  {:<5}  {:>6}  {}\n", name, width, tensor.dtype, tensor.pieces.size(),
               format::format_shape(tensor.shape));
  if (index.extra.empty()) return;
  fmt::print("\nbesides: {}\n", index.extra.dump(2));
}

int show_info(const std::string& typed, bool json) {
  const std::string folder = find_step(typed);
  const format::Index index = format::read_index(folder);
  if (json)
    fmt::print("{}\n", info_json(folder, index).dump(2));
  else
    print_info(folder, index);
  return 0;
}

int verify(const std::string& typed) {
  const std::string folder = find_step(typed);
  const auto found = format::find_damage(folder);
  for (const format::Damage& damage : found) fmt::print("{}\n", damage.sentence);
  if (!found.empty()) {
    fmt::print("{} is damaged\n", folder);
    return 3;
  }
  const format::Index index = format::read_index(folder);
  fmt::print("{} is whole: {} tensors, {} in {} files\n", folder, index.tensors.size(),
             core::format_bytes(total_bytes(index)), index.files.size());
  return 0;
}

/// The words after the action; options may stand anywhere among them.
std::vector<std::string> parse_words(const std::vector<std::string>& args, bool& json) {
  Arguments arguments("trireme ckpt", kPurpose);
  arguments.usage("ls|info|verify|diff PATH [PATH] [--json]");
  arguments.footer(kExamples);
  arguments.flag("--json", json, "info: print one JSON object");
  std::vector<std::string> options, words;
  for (const std::string& word : args)
    (word.size() > 1 && word[0] == '-' ? options : words).push_back(word);
  arguments.parse(options);
  return words;
}

}  // namespace

int ckpt_command(const std::vector<std::string>& args) {
  bool json = false;
  const auto words = parse_words(args, json);
  const std::string action = words.empty() ? "" : words[0];
  const bool known = action == "ls" || action == "info" || action == "verify" || action == "diff";
  if (!known)
    throw ConfigError(fmt::format(
        "{}; write ls, info, verify or diff ('trireme ckpt --help')",
        action.empty() ? "nothing to do was given" : "unknown action '" + action + "'"));
  const size_t wanted = action == "diff" ? 2 : 1;
  if (words.size() != 1 + wanted)
    throw ConfigError(fmt::format("{} takes {}, not {} ('trireme ckpt --help')", action,
                                  wanted == 1 ? "one path" : "two paths", words.size() - 1));
  if (json && action != "info") throw ConfigError("--json belongs to info");
  if (action == "ls") return list_steps(words[1]);
  if (action == "info") return show_info(words[1], json);
  if (action == "verify") return verify(words[1]);
  return print_difference(find_step(words[1]), find_step(words[2])) ? 0 : 1;
}

}  // namespace trireme::cli
