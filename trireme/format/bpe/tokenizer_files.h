#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "trireme/format/bpe/bpe_tokenizer.h"

namespace trireme::format {

/// Keys are looked up by name here: a vocabulary has 10^5 of them.
using SortedJson = nlohmann::json;

/// JSON of a tokenizer's folder. Throws Error that names the file.
SortedJson read_json_file(const std::string& path);

/// What a Hugging Face tokenizer.json says. Whatever in it is not supported is an Error that names
/// it.
BpeFacts read_tokenizer_json(const std::string& path);

/// The tokens that vocab.json lists and the merges of merges.txt, of GPT-2 or, where
/// tokenizer_config.json says so, of Qwen.
BpeFacts read_vocab_and_merges(const std::string& vocab, const std::string& merges);

/// Adds what lies beside a tokenizer: the chat template and the tokens for begin and end of
/// tokenizer_config.json, or chat_template.jinja.
void add_folder_facts(const std::string& folder, BpeFacts& facts);

/// One merge as files spell it: "a b".
std::pair<std::string, std::string> parse_merge(const std::string& text, const std::string& where);

/// Tokens of {"a": 0, "b": 1}.
std::vector<std::pair<std::string, int32_t>> parse_vocab(const SortedJson& vocab,
                                                         const std::string& where);

}  // namespace trireme::format
