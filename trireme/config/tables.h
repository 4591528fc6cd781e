#pragma once

#include "trireme/config/keys.h"

namespace trireme::config {

// The lists of tables: a struct per table of the file, and how its members are written. To add one,
// give a struct of config.h a list of Bindings in tables.cpp, and a key TABLES(...) in keys.cpp.

/// The words of an enum, as the limits of a key or field.
template <class Choice>
Limits one_of() {
  Limits limits;
  for (const auto& word : Words<Choice>::all)
    (word.built == Built::Now ? limits.words : limits.later).push_back(word.text);
  return limits;
}

/// The fields of one entry of a list.
template <class Entry>
std::span<const Column> columns_of();

/// The fields that an entry gives, in the order of the columns.
template <class Entry>
Rows rows_of(const std::vector<Entry>& entries);

/// `rows` are ones that the columns allow.
template <class Entry>
void read_rows(const Rows& rows, std::vector<Entry>& entries);

}  // namespace trireme::config
