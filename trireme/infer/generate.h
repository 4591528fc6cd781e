#pragma once

#include <functional>
#include <vector>

#include "trireme/comm/communicator.h"
#include "trireme/infer/decoder.h"
#include "trireme/infer/sampler.h"

namespace trireme::infer {

struct GenerateOptions {
  int64_t tokens = 128;  ///< at most so many
  SamplerOptions sampling = {};
  std::vector<int64_t> last = {};  ///< tokens that end a text; they are not handed on
  int64_t vocab = 0;               ///< only tokens below it are drawn; 0: all of the model's
  int64_t seq = 0;                 ///< positions that the model has; 0: any number
};

/// Why a text ended.
enum class End : uint8_t { Tokens, LastToken, Positions };

/// Continues a text of at least one token, and hands on each token as soon as it is drawn. All
/// ranks of `group` draw the same, as its first rank has drawn it. Collective.
End generate(Decoder& decoder, const comm::Communicator& group, const std::vector<int64_t>& prompt,
             const GenerateOptions& options, const std::function<void(int64_t token)>& hand_on);

}  // namespace trireme::infer
