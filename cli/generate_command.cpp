#include <fmt/format.h>

#include <charconv>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/rank_program.h"
#include "trireme/core/error.h"
#include "trireme/launch/run.h"

namespace trireme::cli {

namespace {

constexpr const char* kGeneratePurpose =
    "Lets a trained model continue a text. The text appears as it is written, after the prompt.";

constexpr const char* kGenerateExamples =
    "  trireme generate runs/gpt-small --prompt \"1 2 3\"\n"
    "  trireme generate runs/gpt-small --prompt \"1 2\" --temperature 0.8 --top-p 0.95 --seed 7\n"
    "  trireme generate runs/gpt-small --prompt \"1 2\" --temperature 0 --tensor 2\n\n"
    "(That model was trained on generated data, so it reads and writes the numbers of tokens. One\n"
    "that was trained on text takes a prompt such as \"In the beginning\".)\n\n"
    "CHECKPOINT is a step's folder, or the folder of a run, whose newest step it takes.\n"
    "--chat asks with the chat template that the model was trained with: that of data.chat,\n"
    "or of its tokenizer. The answer ends with <|im_end|>, <|eot_id|>, the\n"
    "tokenizer's eos_token or the token that ends a document.\n\n"
    "HF_FOLDER is a folder of Hugging Face (config.json, safetensors files, tokenizer.json)\n"
    "of a model that 'trireme ckpt import' knows. The text ends after N tokens, with the\n"
    "token that ends a document, or where the model has no more positions. The random number\n"
    "of a token depends on the seed and its place in the text only.\n\n"
    "The tokenizer is the one of the configuration (data.tokenizer), or a tokenizer.json in\n"
    "the folder or its run. A model of generated data, or of token files of an unknown\n"
    "tokenizer, reads and writes the numbers of tokens.\n";

double number_in(const char* option, const std::string& text, double low, double high) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= low && value <= high))
    throw ConfigError(fmt::format("{} {}: write a number from {} to {}", option, text, low, high));
  return value;
}

}  // namespace

int generate_command(const std::vector<std::string>& args) {
  Arguments arguments("trireme generate", kGeneratePurpose);
  arguments.usage("CHECKPOINT|HF_FOLDER --prompt TEXT [OPTIONS]");
  arguments.footer(kGenerateExamples);
  std::string prompt, temperature = "1", top_p = "1", tokenizer, dtype, device = "auto";
  int64_t tokens = 128, seed = 1;
  int tensor = 1;
  bool chat = false;
  arguments.value("--prompt", prompt, "the beginning of the text");
  arguments.flag("--chat", chat,
                 "the prompt is a question to a model of conversations: prints its answer");
  arguments.count("--tokens", tokens, "how many tokens to add at most (128)");
  arguments.value("--temperature", temperature,
                  "0: the likeliest token; above 1: more surprising (1)");
  arguments.value("--top-p", top_p, "draw from the likeliest tokens of this probability (1)");
  arguments.count("--seed", seed, "of the random numbers (1)");
  arguments.value("--tensor", tensor, "how many ranks share each layer (1)");
  arguments.value("--tokenizer", tokenizer,
                  "tokenizer.json, or a folder with it; bytes; or numbers of tokens: numbers");
  arguments.value("--device", device, "auto (a GPU if there is one), cpu or cuda");
  arguments.value("--dtype", dtype,
                  "float32, float64, bfloat16, float16 (float32; on a GPU that of the training)");
  arguments.words("--device", {"auto", "cpu", "cuda"});
  arguments.words("--dtype", {"float32", "float64", "bfloat16", "float16"});
  const auto words = arguments.parse_anywhere(args);
  if (words.size() != 1)
    throw ConfigError(
        words.empty() ? "no checkpoint was named; 'trireme generate runs/gpt-small --prompt ...' "
                        "takes the newest of that run"
                      : fmt::format("unexpected '{}': quote a prompt of several words", words[1]));
  number_in("--temperature", temperature, 0, 1000);
  if (number_in("--top-p", top_p, 0, 1) == 0)
    throw ConfigError("--top-p 0 leaves no token; --temperature 0 takes the likeliest");
  if (tokens < 0 || seed < 0) throw ConfigError("--tokens and --seed are 0 or more");
  if (tensor < 1)
    throw ConfigError(fmt::format("--tensor {}: at least one rank is needed", tensor));
  std::vector<std::string> command = {"generate",
                                      words[0],
                                      prompt,
                                      std::to_string(tokens),
                                      temperature,
                                      top_p,
                                      std::to_string(seed),
                                      std::to_string(tensor),
                                      tokenizer,
                                      device,
                                      dtype,
                                      chat ? "chat" : "text"};
  if (tensor == 1 || under_launcher()) become_rank(command);
  command.insert(command.begin(), rank_program());
  return launch::run({.command = command,
                      .num_ranks = tensor,
                      .display = launch::Display::Bare,
                      .speaker = "trireme generate"});
}

}  // namespace trireme::cli
