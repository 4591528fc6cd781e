#include "models/registry.h"

#include "models/gpt.h"
#include "models/mlp.h"
#include "trireme/core/error.h"

namespace trireme::models {

std::shared_ptr<nn::ModelImpl> make_model(const config::Model& wanted, const Mesh& mesh) {
  if (wanted.kind == "gpt")
    return std::make_shared<GptImpl>(GptOptions{.layers = wanted.layers,
                                                .hidden = wanted.hidden,
                                                .heads = wanted.heads,
                                                .kv_heads = wanted.kv_heads,
                                                .ffn = wanted.ffn,
                                                .seq = wanted.seq,
                                                .vocab = wanted.vocab,
                                                .dropout = wanted.dropout,
                                                .attention_dropout = wanted.attention_dropout,
                                                .tie = wanted.tie},
                                     mesh);
  if (wanted.kind == "mlp")
    return std::make_shared<MlpImpl>(MlpOptions{.layers = wanted.layers,
                                                .hidden = wanted.hidden,
                                                .seq = wanted.seq,
                                                .vocab = wanted.vocab,
                                                .dropout = wanted.dropout},
                                     mesh);
  throw ConfigError(
      fmt::format("model.kind = \"{}\" is not built yet; there are gpt and mlp", wanted.kind));
}

}  // namespace trireme::models
