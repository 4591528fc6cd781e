#pragma once

#include <span>
#include <string>
#include <string_view>

namespace trireme::exchange {

/// The files of a Hugging Face folder that go with its weights. A checkpoint that was imported
/// keeps them beside its index.json.
constexpr std::string_view kGenerationName = "generation_config.json";
constexpr std::string_view kTokenizerNames[] = {"tokenizer.json",
                                                "tokenizer_config.json",
                                                "tokenizer.model",
                                                "vocab.json",
                                                "merges.txt",
                                                "added_tokens.json",
                                                "chat_template.jinja",
                                                "chat_template.json",
                                                "special_tokens_map.json"};

/// Copies those of the files that are there, and fsyncs each; returns how many.
int copy_files(std::span<const std::string_view> names, const std::string& from,
               const std::string& to);

}  // namespace trireme::exchange
