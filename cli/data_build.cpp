#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "cli/arguments.h"
#include "cli/data_text.h"
#include "cli/status_line.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/format/text/build.h"

namespace trireme::cli {

namespace {

constexpr const char* kBuildPurpose =
    "Cuts text into tokens: writes OUT.bin and OUT.idx, a Megatron data set, from files and "
    "folders.\n"
    "A .jsonl file has a document a line, the \"text\" of its object; any other file is one "
    "document. A "
    "token\nends each. Stopped at any moment and started again, it goes on where it was, and "
    "writes the "
    "same bytes.";

constexpr const char* kBuildExamples =
    "  trireme data build data/licenses /usr/share/common-licenses --jobs 4\n"
    "  trireme train configs/gpt-small.toml data.kind=tokens data.path=data/licenses.bin "
    "model.vocab=257 eval.every=0 run.dir=runs/licenses";

}  // namespace

int data_build_command(const std::vector<std::string>& args) {
  std::string tokenizer_path;
  int jobs = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  bool force = false;
  Arguments arguments("trireme data build", kBuildPurpose);
  arguments.usage("OUT INPUT... [OPTIONS]");
  arguments.footer(kBuildExamples);
  arguments.value(
      "--tokenizer", tokenizer_path,
      "tokenizer.json, or a folder with it or vocab.json and merges.txt; without: bytes");
  arguments.value("--jobs", jobs, "threads (as many as cores)");
  arguments.flag("--force", force, "replace OUT if it exists");
  const auto words = arguments.parse_anywhere(args);
  if (words.size() < 2) throw ConfigError("use 'trireme data build OUT INPUT...'");
  if (jobs < 1 || jobs > 1024) throw ConfigError(fmt::format("--jobs {}: must be 1 to 1024", jobs));
  format::BuildJob job;
  job.out = words[0].ends_with(".bin") || words[0].ends_with(".idx")
                ? words[0].substr(0, words[0].size() - 4)
                : words[0];
  job.inputs.assign(words.begin() + 1, words.end());
  job.threads = jobs;
  const bool unfinished = ::access((job.out + ".building").c_str(), F_OK) == 0;
  for (const char* suffix : {".bin", ".idx"})
    if (!force && !unfinished && ::access((job.out + suffix).c_str(), F_OK) == 0)
      throw ConfigError(
          fmt::format("{}{} is there already; name another data set, or add --force to replace it",
                      job.out, suffix));
  const auto tokenizer = format::load_tokenizer(tokenizer_path);
  std::error_code ignored;  // if the folder cannot be made, writing reports it
  std::filesystem::create_directories(std::filesystem::path(job.out).parent_path(), ignored);
  StatusLine status;
  const auto result = format::build_tokens(*tokenizer, job, [&](format::BuildProgress now) {
    if (status.due())
      status.show(fmt::format("{} of {}", core::format_bytes(now.done_bytes),
                              core::format_bytes(now.all_bytes)));
  });
  fmt::print("{}.bin: {} documents, {} tokens of {}; model.vocab must be at least {}\n", job.out,
             result.documents, result.tokens, core::format_bytes(result.bytes),
             tokenizer->vocab_size());
  return 0;
}

}  // namespace trireme::cli
