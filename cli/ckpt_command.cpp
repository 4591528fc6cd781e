#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>

#include "cli/arguments.h"
#include "cli/ckpt_diff.h"
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
    "Looks into checkpoints, and rewrites them for other tools. No torch is loaded.\n\n"
    "  trireme ckpt ls PATH              the steps that are there, their sizes and times\n"
    "  trireme ckpt info PATH [--json]   tensors, dtypes, shapes, pieces, and what else was saved\n"
    "  trireme ckpt verify PATH          reads every byte: sizes, checksums, completeness\n"
    "  trireme ckpt diff A B             compares two checkpoints, tensor by tensor, bit by bit\n"
    "  trireme ckpt reshard PATH OUT     writes one anew: every tensor whole, in one file\n"
    "  trireme ckpt reshard PATH OUT --ranks N   or as N ranks with mesh.shard=N would have";

constexpr const char* kCkptExamples =
    "PATH is a run's folder, its checkpoints/, or one step in there; of several steps the newest\n"
    "is taken. How the tensors were cut when they were saved makes no difference to diff.\n\n"
    "  trireme ckpt ls runs/gpt\n"
    "  trireme ckpt verify runs/gpt/checkpoints/step-00000500\n"
    "  trireme ckpt diff runs/two-ranks runs/one-rank\n"
    "  trireme ckpt info runs/gpt --json | jq .extra\n"
    "  trireme ckpt reshard runs/gpt whole     # then, in Python:\n"
    "      safetensors.torch.load_file('whole/part-00000.safetensors')\n\n"
    "Training needs no reshard: any mesh loads what any mesh saved. OUT becomes a checkpoint's\n"
    "folder; it must not be there, and it appears whole or not at all (OUT.tmp until then). The\n"
    "values are the same bit for bit; what is read is verified. It takes 64 MiB of memory, and 1\n"
    "MiB for each of at most 64 open files.\n\n"
    "Exit codes: 0 whole, equal or written; 1 different (diff), or failed; 2 usage, no checkpoint\n"
    "there, or one of a newer Trireme; 3 damaged (verify), with the file, the block and the\n"
    "tensors in it.";

constexpr int kMostRanks = 99'999;  // as the names of the parts have digits

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
  } catch (const ConfigError& error) {
    fmt::print("{:>10}  {}\n", "newer", error.what());
  }
}

int list_steps(const std::string& typed) {
  const std::string path = checked_folder(typed);
  std::vector<std::string> folders, unfinished;
  if (is_step(path)) {
    folders.push_back(path);
  } else {
    const std::string folder = steps_folder(path);
    for (const int64_t step : format::list(folder))
      folders.push_back(folder + "/" + format::step_name(step));
    unfinished = format::list_unfinished(folder);
  }
  if (folders.empty()) find_step(path);  // says why not
  fmt::print("{:>10}  {:>10}  {:>7}  {:>5}  {:<19}  {}\n", "step", "size", "tensors", "files",
             "saved", "folder");
  for (const std::string& folder : folders) print_row(folder);
  for (const std::string& folder : unfinished)
    fmt::print("{:>10}  {} has no {}\n", "unfinished", folder, format::kIndexName);
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
             core::format_bytes(total_bytes(index)), index.files.size());
  return 0;
}

struct Words {
  std::vector<std::string> words;
  bool json = false;
  int ranks = 0;  ///< 0: not said
};

/// Options may stand anywhere among the words.
Words parse_words(const std::vector<std::string>& args) {
  Words parsed;
  Arguments arguments("trireme ckpt", kCkptPurpose);
  arguments.usage("ls|info|verify|diff|reshard PATH [PATH] [OPTIONS]");
  arguments.footer(kCkptExamples);
  arguments.flag("--json", parsed.json, "info: print one JSON object");
  arguments.value("--ranks", parsed.ranks, "reshard: for how many ranks (1: tensors stay whole)");
  std::vector<std::string> options;
  for (size_t i = 0; i < args.size(); ++i) {
    const bool option = args[i].size() > 1 && args[i][0] == '-';
    (option ? options : parsed.words).push_back(args[i]);
    if (args[i] == "--ranks" && i + 1 < args.size()) options.push_back(args[++i]);
  }
  const bool ranks_said = std::ranges::any_of(
      options, [](const std::string& word) { return word.starts_with("--ranks"); });
  arguments.parse(options);
  if (ranks_said && (parsed.ranks < 1 || parsed.ranks > kMostRanks))
    throw ConfigError(fmt::format("--ranks {}: 1 to {} can be", parsed.ranks, kMostRanks));
  return parsed;
}

}  // namespace

int ckpt_command(const std::vector<std::string>& args) {
  const auto [words, json, ranks] = parse_words(args);
  const std::string action = words.empty() ? "" : words[0];
  const std::vector<std::string> actions = {"ls", "info", "verify", "diff", "reshard"};
  if (std::ranges::find(actions, action) == actions.end())
    throw ConfigError(fmt::format(
        "{}; write ls, info, verify, diff or reshard ('trireme ckpt --help')",
        action.empty() ? "nothing to do was given" : "unknown action '" + action + "'"));
  const size_t wanted = action == "diff" || action == "reshard" ? 2 : 1;
  if (words.size() != 1 + wanted)
    throw ConfigError(fmt::format("{} takes {}, not {} ('trireme ckpt --help')", action,
                                  wanted == 1 ? "one path" : "two paths", words.size() - 1));
  if (json && action != "info") throw ConfigError("--json belongs to info");
  if (ranks > 0 && action != "reshard") throw ConfigError("--ranks belongs to reshard");
  if (action == "ls") return list_steps(words[1]);
  if (action == "info") return show_info(words[1], json);
  if (action == "verify") return verify_typed(words[1]);
  if (action == "diff") return print_difference(find_step(words[1]), find_step(words[2])) ? 0 : 1;
  std::string out = words[2];
  while (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return reshard_checkpoint(find_step(words[1]), out, std::max(ranks, 1));
}

}  // namespace trireme::cli
