#pragma once

#include <memory>
#include <string>

#include "trireme/config/config.h"
#include "trireme/data/dataset.h"

namespace trireme::train {

/// The token that ends a document: data.eod, or that of data.tokenizer. Throws Error with one
/// sentence.
int64_t document_end(const config::Config& config);

/// The text at `path`, as data.tokenizer cuts it. Throws Error with one sentence.
std::shared_ptr<const data::Dataset> open_text(const config::Config& config,
                                               const std::string& path);

/// The conversations at `path`, as data.chat lays them out: a file with a template, else the one of
/// the tokenizer, else the default one. Throws Error with one sentence.
std::shared_ptr<const data::Dataset> open_conversations(const config::Config& config,
                                                        const std::string& path);

}  // namespace trireme::train
