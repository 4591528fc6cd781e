#include "trireme/config/tables.h"

namespace trireme::config {

namespace {

/// A column and the member of `Entry` that it stands for.
template <class Entry>
struct Binding {
  Column column;
  std::optional<Cell> (*get)(const Entry&);  ///< nothing: the entry does not give it
  void (*set)(Entry&, const Cell&);
};

template <class T>
std::optional<Cell> cell_of(const T& member) {
  if constexpr (std::is_enum_v<T>)
    return std::string(to_string(member));
  else
    return member;
}
std::optional<Cell> cell_of(const std::optional<double>& member) {
  return member ? std::optional<Cell>(*member) : std::nullopt;
}

template <class T>
void read_cell(const Cell& cell, T& member) {
  if constexpr (std::is_enum_v<T>) {
    for (const auto& word : Words<T>::all)
      if (word.text == std::get<std::string>(cell)) member = word.choice;
  } else {
    member = std::get<T>(cell);
  }
}
void read_cell(const Cell& cell, std::optional<double>& member) {
  member = std::get<double>(cell);
}

/// A value of the type that the file writes for a member.
template <class T>
Cell kind_for() {
  if constexpr (std::is_enum_v<T>)
    return std::string();
  else if constexpr (std::is_same_v<T, std::optional<double>>)
    return 0.0;
  else
    return T{};
}

enum class Needed : uint8_t { No, Yes };

template <auto member, class Entry, class T>
Binding<Entry> bound(T Entry::*, std::string_view name, std::string_view meaning, Needed needed,
                     Limits limits) {
  return {{name, meaning, kind_for<T>(), needed == Needed::Yes, std::move(limits)},
          [](const Entry& entry) { return cell_of(entry.*member); },
          [](Entry& entry, const Cell& cell) { read_cell(cell, entry.*member); }};
}
template <auto member>
auto column(std::string_view name, std::string_view meaning, Needed needed = Needed::No,
            Limits limits = {}) {
  return bound<member>(member, name, meaning, needed, std::move(limits));
}

const Limits kRate = {.at_least = 0};

const std::vector<Binding<ParameterGroup>>& bindings(const ParameterGroup*) {
  static const std::vector<Binding<ParameterGroup>> all = {
      column<&ParameterGroup::match>("match", "pattern of the names of parameters", Needed::Yes,
                                     {.not_empty = true}),
      column<&ParameterGroup::lr>("lr", "their highest learning rate", Needed::No, kRate),
      column<&ParameterGroup::weight_decay>("weight_decay", "their decay", Needed::No, kRate)};
  return all;
}

const std::vector<Binding<DataSource>>& bindings(const DataSource*) {
  static const std::vector<Binding<DataSource>> all = {
      column<&DataSource::kind>("kind", "where its samples come from", Needed::Yes,
                                one_of<DataKind>()),
      column<&DataSource::path>("path", "its data"),
      column<&DataSource::weight>("weight", "its share, relative to the others", Needed::No,
                                  {.more_than = 0})};
  return all;
}

}  // namespace

template <class Entry>
std::span<const Column> columns_of() {
  static const std::vector<Column> all = [] {
    std::vector<Column> columns;
    for (const auto& binding : bindings(static_cast<const Entry*>(nullptr)))
      columns.push_back(binding.column);
    return columns;
  }();
  return all;
}

template <class Entry>
Rows rows_of(const std::vector<Entry>& entries) {
  Rows rows;
  for (const Entry& entry : entries) {
    Row& row = rows.emplace_back();
    for (const auto& binding : bindings(&entry))
      if (auto cell = binding.get(entry))
        row.push_back({std::string(binding.column.name), std::move(*cell)});
  }
  return rows;
}

template <class Entry>
void read_rows(const Rows& rows, std::vector<Entry>& entries) {
  entries.clear();
  for (const Row& row : rows) {
    Entry& entry = entries.emplace_back();
    for (const Field& field : row)
      for (const auto& binding : bindings(&entry))
        if (binding.column.name == field.name) binding.set(entry, field.value);
  }
}

#define LIST_OF(Entry)                                  \
  template std::span<const Column> columns_of<Entry>(); \
  template Rows rows_of(const std::vector<Entry>&);     \
  template void read_rows(const Rows&, std::vector<Entry>&)

LIST_OF(ParameterGroup);
LIST_OF(DataSource);

}  // namespace trireme::config
