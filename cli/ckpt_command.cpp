#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>

#include "cli/arguments.h"
#include "cli/ckpt_diff.h"
#include "cli/ckpt_list.h"
#include "cli/ckpt_reshard.h"
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

constexpr const char* kCkptPurpose =
    "Inspects checkpoints, and rewrites them for other tools. Does not load torch.\n\n"
    "  trireme ckpt ls PATH              lists the steps: state, size, time\n"
    "  trireme ckpt info PATH            tensors, dtypes, shapes, pieces, and the other saved "
    "values\n"
    "  trireme ckpt verify PATH          reads every byte: sizes, checksums, completeness\n"
    "  trireme ckpt diff A B             compares two checkpoints, tensor by tensor, bit by bit\n"
    "  trireme ckpt reshard PATH OUT     rewrites one: every tensor whole, in one file\n"
    "  trireme ckpt reshard PATH OUT --ranks N   or as N ranks with mesh.shard=N would have";

constexpr const char* kCkptExamples =
    "PATH is a run's folder, its checkpoints/, or one step in there; of several steps the newest\n"
    "is taken. diff does not depend on how the tensors were cut when they were saved. ls "
    "looks\n"
    "at names and sizes; only verify reads the bytes.\n\n"
    "  trireme ckpt ls runs/gpt-small\n"
    "  trireme ckpt verify runs/gpt-small/checkpoints\n"
    "  trireme ckpt diff runs/gpt-small runs/other\n"
    "  trireme ckpt info runs/gpt-small --json\n"
    "  trireme ckpt reshard runs/gpt-small whole     # then, in Python:\n"
    "      safetensors.torch.load_file('whole/part-00000.safetensors')\n\n"
    "Training needs no reshard: any mesh loads what any mesh saved. OUT becomes a checkpoint's\n"
    "folder; it must not exist yet, and appears complete or not at all (OUT.tmp until then). The\n"
    "values are the same bit for bit; what is read is verified. It takes 64 MiB of memory, and 1\n"
    "MiB for each of at most 64 open files.\n\n"
    "Exit codes: 0 whole, equal or written; 1 different (diff), or failed; 2 usage, no checkpoint\n"
    "there, or one of a newer Trireme; 3 damaged (verify), with the file, the block and the\n"
    "tensors in it.";

const std::vector<std::string> kCkptActions = {"ls", "info", "verify", "diff", "reshard"};
constexpr int kMostRanks = 99'999;  // names of parts have five digits

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

int list_steps(const std::string& typed, Form form) {
  const std::string path = checked_folder(typed);
  const std::string folder = is_step(path) ? path : steps_folder(path);
  if (!print_steps(folder, form)) find_step(path);  // throws: there is none
  return 0;
}

/// The index without the checksums, which are long and of no use here.
core::Json info_json(const std::string& folder, const format::Index& index) {
  core::Json json = format::json_of(index);
  for (auto& file : json["files"]) file.erase("checksums");
  json["folder"] = folder;
  json["bytes"] = index.total_bytes();
  return json;
}

/// The value in one line.
std::string in_short(const core::Json& value) {
  constexpr size_t kMost = 72;
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    const auto lines = std::ranges::count(text, '\n');
    if (lines > 1) return fmt::format("{} lines", lines);
  }
  std::string text = value.dump();
  if (text.size() <= kMost) return text;
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  if (!value.is_object()) return text.substr(0, kMost) + "...";
  std::string names;
  for (const auto& [name, part] : value.items())
    names += fmt::format("{}{}", names.empty() ? "" : ", ",
                         part.is_structured() ? fmt::format("{} ({})", name, part.size())
                                              : name + " " + part.dump());
  return names;
}

void print_info(const std::string& folder, const format::Index& index) {
  fmt::print("{}: step {}, {} in {} files, saved {}\n\n", folder, index.step,
             core::format_bytes(index.total_bytes()), index.files.size(), time_of(folder));
  size_t width = 6;
  for (const auto& [name, tensor] : index.tensors) width = std::max(width, name.size());
  fmt::print("{:<{}}  {:<5}  {:>6}  {}\n", "tensor", width, "dtype", "pieces", "shape");
  for (const auto& [name, tensor] : index.tensors)
    fmt::print("{:<{}}  {:<5}  {:>6}  {}\n", name, width, tensor.dtype, tensor.pieces.size(),
               format::format_shape(tensor.shape));
  if (index.extra.empty()) return;
  fmt::print("\nother values (--json shows them in full):\n");
  for (const auto& [name, value] : index.extra.items())
    fmt::print("  {}: {}\n", name, in_short(value));
}

int show_info(const std::string& typed, Form form) {
  const std::string folder = find_step(typed);
  const format::Index index = format::read_index(folder);
  if (form == Form::Json)
    fmt::print("{}\n", info_json(folder, index).dump(2));
  else
    print_info(folder, index);
  return 0;
}

int verify_typed(const std::string& typed) {
  const std::string folder = find_step(typed);
  const auto found = format::find_damage(folder);
  for (const format::Damage& damage : found) fmt::print("{}\n", damage.sentence);
  if (!found.empty()) {
    fmt::print("{} is damaged\n", folder);
    return 3;
  }
  const format::Index index = format::read_index(folder);
  fmt::print("{} is whole: {} tensors, {} in {} files\n", folder, index.tensors.size(),
             core::format_bytes(index.total_bytes()), index.files.size());
  return 0;
}

struct CkptArguments {
  std::vector<std::string> words;
  bool json = false;
  static constexpr int kNotGiven = std::numeric_limits<int>::min();
  int ranks = kNotGiven;
};

CkptArguments parse_words(const std::vector<std::string>& args) {
  CkptArguments parsed;
  Arguments arguments("trireme ckpt", kCkptPurpose);
  arguments.usage("ls|info|verify|diff|reshard PATH [PATH] [OPTIONS]");
  arguments.footer(kCkptExamples);
  arguments.actions(kCkptActions);
  arguments.flag("--json", parsed.json, "ls, info: print JSON");
  arguments.value("--ranks", parsed.ranks, "reshard: for how many ranks (1: tensors stay whole)");
  parsed.words = arguments.parse_anywhere(args);
  if (parsed.ranks != CkptArguments::kNotGiven && (parsed.ranks < 1 || parsed.ranks > kMostRanks))
    throw ConfigError(fmt::format("--ranks {}: must be 1 to {}", parsed.ranks, kMostRanks));
  return parsed;
}

}  // namespace

int ckpt_command(const std::vector<std::string>& args) {
  const auto [words, json, ranks] = parse_words(args);
  const std::string action = words.empty() ? "" : words[0];
  if (std::ranges::find(kCkptActions, action) == kCkptActions.end())
    throw ConfigError(
        fmt::format("{}; write ls, info, verify, diff or reshard ('trireme ckpt --help')",
                    action.empty() ? "no action was given" : "unknown action '" + action + "'"));
  const size_t wanted = action == "diff" || action == "reshard" ? 2 : 1;
  if (words.size() != 1 + wanted)
    throw ConfigError(fmt::format("{} takes {}, not {} ('trireme ckpt --help')", action,
                                  wanted == 1 ? "one path" : "two paths", words.size() - 1));
  if (json && action != "info" && action != "ls")
    throw ConfigError("--json belongs to ls and info");
  if (ranks != CkptArguments::kNotGiven && action != "reshard")
    throw ConfigError("--ranks belongs to reshard");
  const Form form = json ? Form::Json : Form::Text;
  if (action == "ls") return list_steps(words[1], form);
  if (action == "info") return show_info(words[1], form);
  if (action == "verify") return verify_typed(words[1]);
  if (action == "diff") return print_difference(find_step(words[1]), find_step(words[2])) ? 0 : 1;
  std::string out = words[2];
  while (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return reshard_checkpoint(find_step(words[1]), out, std::max(ranks, 1));
}

}  // namespace trireme::cli
