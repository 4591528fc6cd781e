#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "cli/arguments.h"
#include "cli/ckpt_diff.h"
#include "cli/ckpt_exchange.h"
#include "cli/ckpt_list.h"
#include "cli/ckpt_reshard.h"
#include "cli/commands.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/format/dtype.h"
#include "trireme/format/find_step.h"
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
    "  trireme ckpt reshard PATH OUT --ranks N   or as N ranks with mesh.shard=N would have\n"
    "  trireme ckpt import HF_FOLDER OUT  a Hugging Face folder (gpt2, llama, qwen2) becomes one\n"
    "  trireme ckpt export PATH OUT      writes one as a folder that transformers reads\n"
    "  trireme ckpt merge PATH OUT       adds low-rank adapters to the weights that they belong to";

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
    "import and export keep every bit, unless --dtype says otherwise. import takes also a "
    "tokenizer\n"
    "and generation settings along, and export finds them there, at data.tokenizer, in "
    "model.from,\n"
    "or where --tokenizer says. Rows that --vocab adds are the mean of the others.\n\n"
    "merge takes these weights from where the run began (model.from), or from --base: a checkpoint "
    "or\n"
    "a Hugging Face folder. Weights that are not adapted stay as they are, bit for bit.\n\n"
    "Exit codes: 0 whole, equal or written; 1 different (diff), or failed; 2 usage, no checkpoint\n"
    "there, or one of a newer Trireme; 3 damaged (verify), with the file, the block and the\n"
    "tensors in it.";

const std::vector<std::string> kCkptActions = {"ls",      "info",   "verify", "diff",
                                               "reshard", "import", "export", "merge"};
constexpr int kMostRanks = 99'999;  // names of parts have five digits

int list_steps(const std::string& typed, Form form) {
  if (!print_steps(format::steps_folder(typed), form))
    format::find_step(typed);  // throws: there is none
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
  const std::string folder = format::find_step(typed);
  const format::Index index = format::read_index(folder);
  if (form == Form::Json)
    fmt::print("{}\n", info_json(folder, index).dump(2));
  else
    print_info(folder, index);
  return 0;
}

int verify_typed(const std::string& typed) {
  const std::string folder = format::find_step(typed);
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
  std::optional<int> ranks, vocab;
  std::string dtype, tokenizer, base;
  int64_t file_bytes = exchange::kMostFileBytes;

  std::string action() const { return words.empty() ? "" : words[0]; }
};

/// Throws ConfigError if an option was given to an action that does not have it.
void check_options(const CkptArguments& given) {
  struct Owner {
    const char* option;
    bool given;
    std::vector<std::string> actions;
  };
  const std::vector<Owner> owners = {
      {"--json", given.json, {"ls", "info"}},
      {"--ranks", given.ranks.has_value(), {"reshard"}},
      {"--vocab", given.vocab.has_value(), {"import", "export"}},
      {"--dtype", !given.dtype.empty(), {"import", "export"}},
      {"--tokenizer", !given.tokenizer.empty(), {"export"}},
      {"--base", !given.base.empty(), {"merge"}},
      {"--max-shard-size", given.file_bytes != exchange::kMostFileBytes, {"export"}}};
  for (const Owner& one : owners)
    if (one.given && std::ranges::find(one.actions, given.action()) == one.actions.end())
      throw ConfigError(
          fmt::format("{} belongs to {}", one.option, fmt::join(one.actions, " and ")));
  if (given.ranks && (*given.ranks < 1 || *given.ranks > kMostRanks))
    throw ConfigError(fmt::format("--ranks {}: must be 1 to {}", *given.ranks, kMostRanks));
  if (given.vocab && *given.vocab < 2)
    throw ConfigError(fmt::format("--vocab {}: must be at least 2", *given.vocab));
  if (given.file_bytes < 1)
    throw ConfigError(fmt::format("--max-shard-size {}: must be at least 1", given.file_bytes));
}

CkptArguments parse_words(const std::vector<std::string>& args) {
  CkptArguments parsed;
  Arguments arguments("trireme ckpt", kCkptPurpose);
  arguments.usage("ls|info|verify|diff|reshard|import|export|merge PATH [PATH] [OPTIONS]");
  arguments.footer(kCkptExamples);
  arguments.actions(kCkptActions);
  arguments.flag("--json", parsed.json, "ls, info: print JSON");
  arguments.value("--ranks", parsed.ranks, "reshard: for how many ranks (1: tensors stay whole)");
  arguments.value("--dtype", parsed.dtype, "import, export: convert to this dtype");
  arguments.words("--dtype", {"float32", "bfloat16", "float16", "float64"});
  arguments.value("--vocab", parsed.vocab, "import, export: crop or pad the vocabulary to this");
  arguments.value("--tokenizer", parsed.tokenizer, "export: a folder with tokenizer files");
  arguments.value("--base", parsed.base, "merge: the weights that the adapters belong to");
  arguments.count("--max-shard-size", parsed.file_bytes,
                  "export: most bytes of a file before another begins");
  parsed.words = arguments.parse_anywhere(args);
  return parsed;
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

/// The actions that write a folder OUT.
int write_out(const CkptArguments& given) {
  const std::string &from = given.words[1], out = without_slash(given.words[2]);
  const std::optional<int64_t> vocab = given.vocab;
  const std::string dtype = stored_dtype(given.dtype);
  if (given.action() == "import")
    return import_hf(without_slash(from), out, {.vocab = vocab, .dtype = dtype});
  if (given.action() == "export")
    return export_hf(format::find_step(from), out,
                     {.vocab = vocab,
                      .dtype = dtype,
                      .file_bytes = given.file_bytes,
                      .tokenizer = given.tokenizer});
  if (given.action() == "merge")
    return merge_step(format::find_step(from), out, {.base = without_slash(given.base)});
  return reshard_checkpoint(format::find_step(from), out, given.ranks.value_or(1));
}

}  // namespace

int ckpt_command(const std::vector<std::string>& args) {
  const CkptArguments given = parse_words(args);
  const std::string action = given.action();
  if (std::ranges::find(kCkptActions, action) == kCkptActions.end())
    throw ConfigError(
        fmt::format("{}; write ls, info, verify, diff, reshard, import, export or merge ('trireme "
                    "ckpt --help')",
                    action.empty() ? "no action was given" : "unknown action '" + action + "'"));
  const size_t wanted = action == "ls" || action == "info" || action == "verify" ? 1 : 2;
  if (given.words.size() != 1 + wanted)
    throw ConfigError(fmt::format("{} takes {}, not {} ('trireme ckpt --help')", action,
                                  wanted == 1 ? "one path" : "two paths", given.words.size() - 1));
  check_options(given);
  const Form form = given.json ? Form::Json : Form::Text;
  const std::string& path = given.words[1];
  if (action == "ls") return list_steps(path, form);
  if (action == "info") return show_info(path, form);
  if (action == "verify") return verify_typed(path);
  if (action == "diff")
    return print_difference(format::find_step(path), format::find_step(given.words[2])) ? 0 : 1;
  return write_out(given);
}

}  // namespace trireme::cli
