#include <fmt/format.h>

#include "cli/rank_commands.h"
#include "trireme/data/markov.h"
#include "trireme/format/tokens.h"

namespace trireme::cli {

int data_make(const std::vector<std::string>& args) {
  const std::string &out = args.at(0), &kind = args.at(1);
  const int64_t tokens = std::stoll(args.at(2)), vocab = std::stoll(args.at(3));
  const data::Markov language(
      {.vocab = vocab, .seed = static_cast<uint64_t>(std::stoll(args.at(4)))});
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
