#include "cli/ckpt_exchange.h"

#include <fmt/format.h>

#include "cli/interruptible.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"
#include "trireme/format/folder.h"
#include "trireme/format/index.h"

namespace trireme::cli {

namespace {

void check_out(const std::string& action, const std::string& to) {
  if (to.empty()) throw ConfigError(action + ": OUT is empty; name the folder to write");
}

/// Runs the work; the number of bytes that it has written goes to `bytes`.
template <class Options, class Work>
int write_with_progress(const std::string& action, const std::string& to, Options& options,
                        int64_t& bytes, const Work& work) {
  return write_interruptibly("trireme ckpt " + action, to, [&](const Tell& tell) {
    options.progress = [&](const exchange::Progress& now) {
      bytes = now.all_bytes;
      tell([&] {
        return fmt::format("{} of {}", core::format_bytes(now.done_bytes),
                           core::format_bytes(now.all_bytes));
      });
    };
    work();
  });
}

}  // namespace

std::string stored_dtype(const std::string& word) {
  if (word.empty()) return "";
  if (word == "float32") return "F32";
  if (word == "bfloat16") return "BF16";
  if (word == "float16") return "F16";
  if (word == "float64") return "F64";
  throw ConfigError(fmt::format(
      "--dtype {}: must be one of float32, bfloat16, float16, float64, or left out", word));
}

int import_hf(const std::string& folder, const std::string& to, exchange::ImportOptions options) {
  check_out("import", to);
  if (const auto wrong = format::wrong_name(to, 0))
    throw ConfigError(*wrong + "; choose another name");
  int64_t bytes = 0;
  const int code = write_with_progress("import", to, options, bytes,
                                       [&] { exchange::import_folder(folder, to, options); });
  if (code != 0) return code;
  fmt::print("{}: {} tensors, {}; train from it with model.from={}\n", to,
             format::read_index(to).tensors.size(), core::format_bytes(bytes), to);
  return 0;
}

int export_hf(const std::string& step, const std::string& to, exchange::ExportOptions options) {
  check_out("export", to);
  int64_t bytes = 0;
  const int code = write_with_progress("export", to, options, bytes,
                                       [&] { exchange::export_checkpoint(step, to, options); });
  if (code != 0) return code;
  fmt::print("{}: {}; from_pretrained of transformers reads it\n", to, core::format_bytes(bytes));
  return 0;
}

int merge_step(const std::string& step, const std::string& to, exchange::MergeOptions options) {
  check_out("merge", to);
  if (const auto wrong = format::wrong_name(to, format::read_index(step).step))
    throw ConfigError(*wrong + "; choose another name");
  int64_t bytes = 0;
  const int code = write_with_progress("merge", to, options, bytes,
                                       [&] { exchange::merge_adapters(step, to, options); });
  if (code != 0) return code;
  fmt::print("{}: {} tensors, {}; train from it with model.from={}\n", to,
             format::read_index(to).tensors.size(), core::format_bytes(bytes), to);
  return 0;
}

}  // namespace trireme::cli
