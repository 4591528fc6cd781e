#include "cli/ckpt_reshard.h"

#include <fmt/format.h>

#include "cli/interruptible.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/format/folder.h"
#include "trireme/format/index.h"
#include "trireme/format/reshard.h"

namespace trireme::cli {

namespace {

using Progress = format::ReshardOptions::Progress;

std::string text_of(const Progress& now) {
  return fmt::format("{} of {}, file {} of {}", core::format_bytes(now.done_bytes),
                     core::format_bytes(now.all_bytes), now.done_files, now.all_files);
}

}  // namespace

int reshard_checkpoint(const std::string& from, const std::string& to, int ranks) {
  if (to.empty()) throw ConfigError("reshard: OUT is empty; name the folder to write");
  if (const auto wrong = format::wrong_name(to, format::read_index(from).step))
    throw ConfigError(*wrong + "; choose another name");
  const int code = write_interruptibly("trireme ckpt reshard", to, [&](const Tell& tell) {
    format::reshard(from, to, {.ranks = ranks, .progress = [&](const Progress& now) {
                                 tell([&] { return text_of(now); });
                               }});
  });
  if (code != 0) return code;
  const format::Index index = format::read_index(to);
  fmt::print("{}: step {}, {} tensors, {} in {} file{}\n", to, index.step, index.tensors.size(),
             core::format_bytes(index.total_bytes()), index.files.size(),
             index.files.size() == 1 ? "" : "s");
  return 0;
}

}  // namespace trireme::cli
