#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "trireme/core/error.h"

namespace trireme::cli {

namespace {

constexpr const char* kEvalPurpose =
    "Measures a trained model: loss and accuracy, of text also the perplexity.";

constexpr const char* kEvalExamples =
    "  trireme eval configs/gpt-small.toml --checkpoint runs/gpt-small\n"
    "  trireme eval configs/gpt-small.toml --checkpoint runs/gpt-small eval.batches=2\n\n"
    "FOLDER is a step's folder, that of a run, whose newest step it takes, or a Hugging Face\n"
    "folder. The model and the data are those of CONFIG: data.valid, the test images of idx\n"
    "and cifar, else the training data. eval.batches says how much of it (0: all). Of images,\n"
    "--out draws a confusion matrix. It runs on mesh.tensor ranks for each copy of the model,\n"
    "and the other axes of the mesh become copies that share the samples.\n";

/// Could a file be written there? It is not touched, because the run may fail.
bool may_be_written(const std::string& path) {
  if (::access(path.c_str(), F_OK) == 0) return ::access(path.c_str(), W_OK) == 0;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return ::access(folder.empty() ? "." : folder.c_str(), W_OK) == 0;
}

}  // namespace

int eval_command(const std::vector<std::string>& args) {
  Arguments arguments("trireme eval", kEvalPurpose);
  arguments.usage("CONFIG --checkpoint FOLDER [KEY=VALUE]... [--out FILE.svg]");
  arguments.footer(kEvalExamples);
  std::string checkpoint, out;
  arguments.value("--checkpoint", checkpoint, "the weights: of a run, or of Hugging Face");
  arguments.value("--out", out, "images: draw the confusion matrix to this SVG file");
  const auto words = arguments.parse_anywhere(args);  // the file and its overrides
  if (checkpoint.empty())
    throw ConfigError("--checkpoint is missing: name the folder of a run, or of one of its steps");
  if (!out.empty() && !out.ends_with(".svg"))
    throw ConfigError(fmt::format("--out {}: the picture is an SVG; name a file.svg", out));
  if (!out.empty() && !may_be_written(out))
    throw ConfigError(fmt::format("--out {}: {}", out, core::errno_text(errno)));
  return train_ranks({"eval", checkpoint, out}, words, "trireme eval");
}

}  // namespace trireme::cli
