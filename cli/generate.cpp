#include "trireme/infer/generate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "cli/rank_commands.h"
#include "models/registry.h"
#include "trireme/config/validate.h"
#include "trireme/core/env.h"
#include "trireme/core/error.h"
#include "trireme/core/json.h"
#include "trireme/core/terminal.h"
#include "trireme/format/chat/chat_template.h"
#include "trireme/format/file.h"
#include "trireme/format/tokenizer.h"
#include "trireme/infer/text_stream.h"
#include "trireme/infer/weights.h"
#include "trireme/train/world.h"

namespace trireme::cli {

namespace {

struct Request {
  std::string path, prompt, tokenizer, device, dtype;
  infer::GenerateOptions options;
  int tensor = 1;
  bool is_chat = false;  ///< the prompt is what a user says, and the text is the answer
};

Request request_of(const std::vector<std::string>& args) {
  Request wanted{.path = args.at(0),
                 .prompt = args.at(1),
                 .tokenizer = args.at(7),
                 .device = args.at(8),
                 .dtype = args.at(9),
                 .options = {.tokens = std::stoll(args.at(2))},
                 .tensor = std::stoi(args.at(6)),
                 .is_chat = args.at(10) == "chat"};
  wanted.options.sampling = {.temperature = std::stod(args.at(3)),
                             .top_p = std::stod(args.at(4)),
                             .seed = std::stoull(args.at(5))};
  return wanted;
}

/// The configuration of the ranks that write: the model of the checkpoint, cut over the tensor axis
/// only.
config::Config config_for(const Request& wanted, const config::Config& trained) {
  config::Config config;
  config.model = trained.model;
  config.model.from = "";
  config.data = trained.data;
  config.tensor.sequence = false;
  config.mesh = {.replica = 1, .tensor = wanted.tensor};
  config.run.device = wanted.device == "cpu"    ? config::Device::Cpu
                      : wanted.device == "cuda" ? config::Device::Cuda
                                                : config::Device::Auto;
  if (wanted.device != "auto" && wanted.device != "cpu" && wanted.device != "cuda")
    throw ConfigError(fmt::format("--device {}: must be auto, cpu or cuda", wanted.device));
  return config;
}

/// In which dtype the model computes: 16 bits are slow on a CPU.
at::ScalarType dtype_for(const Request& wanted, const config::Config& trained, bool gpu) {
  const std::string_view said = !wanted.dtype.empty() ? wanted.dtype
                                : gpu                 ? to_string(trained.precision.compute)
                                                      : "float32";
  if (said == "float32") return at::kFloat;
  if (said == "float64") return at::kDouble;
  if (said == "bfloat16") return at::kBFloat16;
  if (said == "float16") return at::kHalf;
  throw ConfigError(fmt::format("--dtype {}: must be float32, float64, bfloat16 or float16", said));
}

constexpr const char* kNumbers = "numbers";

bool is_there(const std::string& path) {
  return !path.empty() && ::access(path.c_str(), R_OK) == 0;
}

/// Where the tokenizer of the model is; "numbers" if it has none.
std::string tokenizer_for(const Request& wanted, const infer::StoredModel& stored) {
  if (!wanted.tokenizer.empty()) return wanted.tokenizer;
  const config::Data& data = stored.config.data;
  if (is_there(data.tokenizer)) return data.tokenizer;
  for (const std::string& folder : {stored.folder, stored.folder + "/../.."})
    for (const char* name : {"/tokenizer.json", "/vocab.json"})
      if (is_there(folder + name)) return folder;
  if (!data.tokenizer.empty() && data.tokenizer != "bytes")
    throw ConfigError(
        fmt::format("the model was trained with the tokenizer '{}', which is gone: name it with "
                    "--tokenizer, or ask for --tokenizer {}",
                    data.tokenizer, kNumbers));
  const bool is_text =
      data.kind == config::DataKind::Text || data.kind == config::DataKind::JsonLines;
  return is_text ? "bytes" : kNumbers;
}

/// The file of the chat template; empty: that of the tokenizer, or the default one. None: no chat.
std::optional<std::string> chat_template_for(const Request& wanted,
                                             const infer::StoredModel& stored) {
  if (!wanted.is_chat) return {};
  const std::string& own = stored.config.data.chat;
  if (own.empty() || is_there(own)) return own;
  throw ConfigError(
      fmt::format("--chat: the model was trained with the chat template {}, which is gone", own));
}

/// The tokens that end a text, as files of Hugging Face beside the weights say; perhaps none.
std::vector<int64_t> last_tokens_at(const std::string& folder) {
  constexpr int64_t kMostBytes = 1 << 20;
  for (const char* name : {"/generation_config.json", "/config.json"}) {
    if (!is_there(folder + name)) continue;
    const auto json =
        core::Json::parse(format::read_file(folder + name, kMostBytes), nullptr, false);
    if (!json.is_object() || !json.contains("eos_token_id")) continue;
    const core::Json& last = json["eos_token_id"];
    std::vector<int64_t> tokens;
    for (const core::Json& one : last.is_array() ? last : core::Json::array({last}))
      if (one.is_number_integer()) tokens.push_back(one.get<int64_t>());
    return tokens;
  }
  return {};
}

/// Tokens as text, or as numbers with spaces between them.
class Speech {
 public:
  /// `chat_template`: of questions; none: the prompt is the beginning of a text.
  Speech(const std::string& tokenizer, const std::optional<std::string>& chat_template)
      : tokenizer_(tokenizer == kNumbers ? nullptr : format::load_tokenizer(tokenizer)),
        stream_(core::is_terminal(STDOUT_FILENO) ? infer::TextStream::Invalid::Replace
                                                 : infer::TextStream::Invalid::Keep) {
    if (!chat_template) return;
    if (!tokenizer_)
      throw ConfigError(
          "--chat: this model reads numbers of tokens; name its tokenizer with --tokenizer");
    chat_.emplace(format::choose_chat_template(*chat_template, *tokenizer_));
  }

  std::vector<int64_t> read(const std::string& prompt, int64_t vocab) const {
    std::vector<int64_t> tokens = chat_        ? question(prompt)
                                  : tokenizer_ ? encoded(prompt)
                                               : numbers(prompt);
    for (const int64_t token : tokens)
      if (token >= vocab)
        throw ConfigError(
            fmt::format("the prompt has the token {}, and the model knows {} (model.vocab): is "
                        "this its tokenizer?",
                        token, vocab));
    if (tokens.empty())
      throw ConfigError(fmt::format("--prompt is empty: begin the text with {}",
                                    tokenizer_ ? "a word" : "a token's number"));
    return tokens;
  }

  /// The token that ends a document.
  std::optional<int64_t> last() const {
    if (!tokenizer_ || !tokenizer_->end_of_text()) return {};
    return *tokenizer_->end_of_text();
  }
  /// The tokens that end what is written: a document, and in a conversation a turn.
  std::vector<int64_t> ends() const {
    std::vector<int64_t> all;
    if (last()) all.push_back(*last());
    if (!chat_) return all;
    const std::string own = tokenizer_->eos_token();
    for (const std::string_view name : {"<|im_end|>", "<|eot_id|>", own.c_str()})
      if (const auto id = tokenizer_->id_of(name)) all.push_back(*id);
    return all;
  }
  int64_t vocab() const { return tokenizer_ ? tokenizer_->vocab_size() : 0; }

  std::string say(int64_t token) {
    if (!tokenizer_) return fmt::format(" {}", token);
    const auto id = static_cast<int32_t>(token);
    return tokenizer_->is_special(id) ? "" : stream_.push(tokenizer_->bytes_of(id));
  }
  std::string end() { return stream_.end() + "\n"; }

 private:
  std::vector<int64_t> encoded(const std::string& prompt) const {
    const auto ids = tokenizer_->encode(prompt);
    std::vector<int64_t> tokens(ids.begin(), ids.end());
    if (tokens.empty() && last()) tokens.push_back(*last());  // as if a document had ended before
    return tokens;
  }

  std::vector<int64_t> question(const std::string& prompt) const {
    if (prompt.empty()) return {};
    const core::Json asked = {{"role", "user"}, {"content", prompt}};
    const core::Json line = {{"messages", core::Json::array({asked})}};
    const std::string text =
        chat_->chat.render(line, format::ChatTemplate::Prompt::Generation, *tokenizer_);
    const auto ids = tokenizer_->encode(text, format::Around::Nothing);
    return {ids.begin(), ids.end()};
  }

  static std::vector<int64_t> numbers(const std::string& prompt) {
    std::vector<int64_t> tokens;
    for (std::size_t at = 0; at < prompt.size();) {
      const std::size_t begin = prompt.find_first_not_of(" ,\t\n", at);
      if (begin == prompt.npos) break;
      at = std::min(prompt.find_first_of(" ,\t\n", begin), prompt.size());
      const auto number = core::parse_int(prompt.substr(begin, at - begin));
      if (!number || *number < 0)
        throw ConfigError(fmt::format(
            "--prompt: '{}' is not the number of a token, which this model reads: it was trained "
            "on tokens without a tokenizer (--tokenizer names one)",
            prompt.substr(begin, at - begin)));
      tokens.push_back(*number);
    }
    return tokens;
  }

  std::unique_ptr<const format::Tokenizer> tokenizer_;
  std::optional<format::ChosenTemplate> chat_;
  infer::TextStream stream_;
};

void print(const std::string& text) {
  if (text.empty()) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0) throw Error("the output was closed");
}

/// What a person at a terminal likes to know at the end.
void tell_end(infer::End end, int64_t seq, int64_t count, double seconds) {
  if (end == infer::End::Positions)
    fmt::print(stderr, "trireme generate: the text ends here because the model has {} positions\n",
               seq);
  if (core::is_terminal(STDERR_FILENO) && count > 1)
    fmt::print(stderr, "{} tokens, {:.1f} a second\n", count,
               static_cast<double>(count - 1) / seconds);
}

int write_text(const Request& wanted, const infer::StoredModel& stored,
               const config::Config& config, const comm::Communicator& world) {
  using Clock = std::chrono::steady_clock;
  const Mesh mesh(world, {.tensor = wanted.tensor}, train::pick_device(config, world));
  Speech speech(tokenizer_for(wanted, stored), chat_template_for(wanted, stored));
  const auto prompt = speech.read(wanted.prompt, config.model.vocab);
  const bool speaks = world.rank() == 0;
  const auto weights = infer::open_weights(stored, config);
  const auto model =
      infer::load_model(*weights, mesh, dtype_for(wanted, stored.config, mesh.device().is_cuda()),
                        [&](const Mesh& on) { return models::make_model(config, on); });
  infer::Decoder decoder(model);
  infer::GenerateOptions options = wanted.options;
  options.last = last_tokens_at(stored.folder);
  for (const int64_t one : speech.ends()) options.last.push_back(one);
  options.vocab = speech.vocab();
  options.seq = config.model.seq;
  // The prompt comes with the first token: one that is too long is refused before that.
  bool has_begun = false;
  const auto begin_text = [&] {
    if (speaks && !std::exchange(has_begun, true) && !wanted.is_chat) print(wanted.prompt);
  };
  int64_t count = 0;
  Clock::time_point first{};
  const infer::End end =
      infer::generate(decoder, mesh.group(Axis::Tensor), prompt, options, [&](int64_t token) {
        if (count++ == 0) first = Clock::now();
        begin_text();
        if (speaks) print(speech.say(token));
      });
  if (!speaks) return 0;
  begin_text();
  const double seconds = std::chrono::duration<double>(Clock::now() - first).count();
  print(speech.end());
  tell_end(end, config.model.seq, count, seconds);
  return 0;
}

}  // namespace

int generate(const std::vector<std::string>& args) {
  const Request wanted = request_of(args);
  const infer::StoredModel stored = infer::find_model(wanted.path);
  config::refuse_unbuilt(stored.config);
  const config::Config config = config_for(wanted, stored.config);
  return train::with_ranks(config, [&](const comm::Communicator& world) {
    return write_text(wanted, stored, config, world);
  });
}

}  // namespace trireme::cli
