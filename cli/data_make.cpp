#include <fmt/format.h>
#include <sys/stat.h>

#include "cli/arguments.h"
#include "cli/rank_commands.h"
#include "trireme/core/error.h"
#include "trireme/data/markov.h"
#include "trireme/format/tokens.h"

namespace trireme::cli {

int data_make(const std::vector<std::string>& args) {
  int tokens = 1 << 20, vocab = 256, seed = 1;
  std::string kind = "raw", out;
  Arguments arguments("trireme data make", "Writes a generated language of known entropy.");
  arguments.value("--tokens", tokens, "how many");
  arguments.value("--vocab", vocab, "how many different ones");
  arguments.value("--seed", seed, "of the language and the text");
  arguments.value("--kind", kind, "raw (uint16), llmc or megatron");
  arguments.value("--out", out, "the file");
  arguments.parse(args);
  if (out.empty()) throw ConfigError("say where to: trireme data make OUT");
  if (tokens < 2 || vocab < 2 || vocab > 65536)
    throw ConfigError(
        fmt::format("--tokens {} must be at least 2, --vocab {} from 2 to 65536", tokens, vocab));
  const bool known = kind == "raw" || kind == "llmc" || kind == "megatron";
  if (!known) throw ConfigError(fmt::format("--kind '{}' is none of raw, llmc, megatron", kind));
  if (const auto slash = out.rfind('/'); slash != out.npos && slash > 0)
    ::mkdir(out.substr(0, slash).c_str(), 0777);  // if it is there, or cannot be, writing says more
  const data::Markov language({.vocab = vocab, .seed = static_cast<uint64_t>(seed)});
  std::vector<int64_t> wide(static_cast<std::size_t>(tokens));
  language.write(0, tokens, wide.data());
  const std::vector<uint16_t> text(wide.begin(), wide.end());
  format::write_tokens(out,
                       kind == "raw"    ? format::TokenKind::Raw
                       : kind == "llmc" ? format::TokenKind::LlmC
                                        : format::TokenKind::Megatron,
                       text);
  fmt::print("{}: {} tokens of {}, entropy {:.4f} nats a token\n", out, tokens, vocab,
             *language.floor());
  return 0;
}

}  // namespace trireme::cli
