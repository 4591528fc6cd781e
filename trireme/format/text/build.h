#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trireme/format/tokenizer.h"

namespace trireme::format {

struct BuildJob {
  std::vector<std::string> inputs;  ///< files and folders of documents
  std::string out;                  ///< NAME of NAME.bin and NAME.idx
  int threads = 1;
  int64_t part_bytes = 16 << 20;  ///< of text that one thread cuts at a time
};

struct BuildProgress {
  int64_t done_bytes = 0, all_bytes = 0;  ///< of text
};

struct BuildResult {
  int64_t documents = 0, tokens = 0, bytes = 0;
};

/// Cuts documents into tokens and writes them as a Megatron data set, in the order of the inputs.
/// Parts of it are kept in NAME.building until all are there: killed at any moment and called
/// again, it goes on where it was, and its files are the same bytes. `progress` is called now and
/// then on the calling thread. Throws Error, with file and line if a document is the reason.
BuildResult build_tokens(const Tokenizer& tokenizer, const BuildJob& job,
                         const std::function<void(BuildProgress)>& progress = {});

}  // namespace trireme::format
