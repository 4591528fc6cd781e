#include "trireme/config/load.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <set>

#include "trireme/config/effects.h"
#include "trireme/config/keys.h"
#include "trireme/config/nearest.h"
#include "trireme/config/toml_source.h"
#include "trireme/config/validate.h"
#include "trireme/core/error.h"
#include "trireme/core/units.h"

namespace trireme::config {

namespace {

constexpr int64_t kMostBytes =
    16 * core::kMiB;  // more must be a device or a data set, named by mistake

constexpr std::size_t kMostTables = 1024;  // of one list

/// Throws ConfigError; `where` is "gpt.toml:3:1" or "override 'optim.lr=3'".
[[noreturn]] void fail(std::string_view where, std::string_view sentence) {
  throw ConfigError(fmt::format("{}: {}", where, sentence));
}

std::string did_you_mean(std::optional<std::string_view> name) {
  return name ? fmt::format("; did you mean '{}'?", *name) : "";
}

/// Fills a Config entry by entry and remembers which keys were given.
class Reader {
 public:
  void read(const TomlEntry& entry, std::string_view file_name) {
    const auto at = [&](const SourcePosition& place) {
      return fmt::format("{}:{}:{}", file_name, place.line, place.column);
    };
    if (!entry.key) return read_section(entry, at(entry.name_at), at(entry.value_at));
    const std::string name = entry.section + '.' + *entry.key;
    const Key* key = find_key(name);
    if (key == nullptr) fail_unknown(name, at(entry.name_at));
    assign(*key, entry.found, at(entry.value_at), at);
  }

  void read(const std::string& override_text) {
    const std::string where = fmt::format("override '{}'", shortened(override_text));
    const auto equals = override_text.find('=');
    if (equals == override_text.npos) fail(where, "there is no '='; an override is KEY=VALUE");
    const std::string name = trimmed(override_text.substr(0, equals));
    const std::string value = override_text.substr(equals + 1);
    const Key* key = find_key(name);
    if (key == nullptr && is_section(name))
      fail(where, fmt::format("'{}' is a section; an override sets one key of it", name));
    if (key == nullptr) fail_unknown(name, where);
    assign(*key, override_value(*key, value, where), where,
           [&](const SourcePosition&) { return where; });
    overrides_.emplace_back(key, where);
  }

  Config finish(const Completion& complete) {
    if (complete) complete(config_, given_);
    // If only epochs are given, the default number of steps must not apply as well.
    if (config_.run.epochs > 0 && !given_.contains("run.steps")) config_.run.steps = 0;
    // If only a file is named, the generated language is not meant.
    if (!config_.data.path.empty() && !given_.contains("data.kind"))
      config_.data.kind = DataKind::Tokens;
    return resolved(config_);
  }

  /// A key of the file may have no effect in a run. An override was typed for this run, so it must
  /// have one.
  void refuse_idle_overrides() const {
    for (const auto& [key, where] : overrides_) {
      const Value value = get(*key, config_);
      if (value == get(*key, Config{})) continue;
      if (const auto why = why_no_effect(key->name, config_))
        fail(where, fmt::format("{} = {} {}", key->name, shortened(to_text(value)), *why));
    }
  }

 private:
  static bool is_section(std::string_view name) {
    return std::ranges::find(sections(), name) != sections().end();
  }

  static std::string trimmed(const std::string& text) {
    const auto first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
    return first == text.npos ? "" : text.substr(first, last - first + 1);
  }

  [[noreturn]] static void fail_unknown(std::string_view name, std::string_view where) {
    fail(where,
         fmt::format("unknown key '{}'{}", shortened(name), did_you_mean(nearest_key(name))));
  }

  static void read_section(const TomlEntry& entry, std::string_view name_at,
                           std::string_view value_at) {
    const auto* other = std::get_if<UnsupportedValue>(&entry.found);
    const bool is_table = other != nullptr && other->kind == kTableKind;
    if (is_section(entry.section)) {
      if (!is_table) fail(value_at, fmt::format("'{}' is a section, not a key", entry.section));
      return;
    }
    if (!is_table) fail_unknown(entry.section, name_at);
    fail(name_at, fmt::format("unknown section '{}'{}", shortened(entry.section),
                              did_you_mean(nearest(entry.section, sections()))));
  }

  /// Digits that TOML refuses are a number that is too large.
  static bool is_number(const std::string& text) {
    return text.find_first_of("0123456789") != text.npos &&
           text.find_first_not_of("0123456789+-_.eE \t") == text.npos;
  }

  /// For a key that is a string, text that is not a TOML string is taken literally:
  /// run.dir=2024-05-01.
  static TomlValue override_value(const Key& key, const std::string& text, std::string_view where) {
    const auto found = read_toml_value(text);
    const auto* value = found ? std::get_if<Value>(&*found) : nullptr;
    const bool wants_string = wanted_kind(key) == kind_of(Value(std::string()));
    if (found && (!wants_string || (value && std::holds_alternative<std::string>(*value))))
      return *found;
    if (!wants_string && is_number(text))
      fail(where, fmt::format("{} = {} is too large; it must be {}", key.name,
                              shortened(trimmed(text)), wanted_kind(key)));
    // A string that TOML cannot hold could not be read back from the run's config.toml.
    const auto bare = read_toml_value(to_text(text));
    if (!bare) fail(where, "the value is not UTF-8 text");
    return *bare;
  }

  /// An override has one place, `where`; a field of a file has its own.
  using Place = std::function<std::string(const SourcePosition&)>;

  static Rows rows_in(const Key& key, const TomlTables& tables, std::string_view where,
                      const Place& place) {
    if (tables.size() > kMostTables)
      fail(where, fmt::format("{} has {} tables; it must have at most {}", key.name, tables.size(),
                              kMostTables));
    Rows rows;
    for (const TomlTable& table : tables)
      rows.push_back(row_in(key.tables()->columns(), table,
                            fmt::format("{}[{}]", key.name, rows.size()), place));
    return rows;
  }

  /// `name` is "optim.groups[0]".
  static Row row_in(std::span<const Column> columns, const TomlTable& table,
                    const std::string& name, const Place& place) {
    Row row;
    for (const TomlField& field : table.fields) {
      const std::string full = fmt::format("{}.{}", name, shortened(field.name));
      const auto column = std::ranges::find(columns, field.name, &Column::name);
      if (column == columns.end()) {
        std::vector<std::string_view> known;
        for (const Column& each : columns) known.push_back(each.name);
        fail(place(field.name_at),
             fmt::format("unknown key '{}'{}", full, did_you_mean(nearest(field.name, known))));
      }
      if (const auto* other = std::get_if<UnsupportedValue>(&field.found))
        fail(place(field.value_at),
             fmt::format("{} is {}; it must be {}", full, other->kind, wanted_kind(*column)));
      Cell cell = std::get<Cell>(field.found);
      if (std::holds_alternative<double>(column->kind))
        if (const auto* whole = std::get_if<int64_t>(&cell)) cell = static_cast<double>(*whole);
      if (const auto problem = problem_with(*column, full, cell))
        fail(place(field.value_at), *problem);
      row.push_back({field.name, std::move(cell)});
    }
    for (const Column& column : columns)
      if (column.needed && std::ranges::find(row, column.name, &Field::name) == row.end())
        fail(place(table.at), fmt::format("{} has no '{}', which it needs", name, column.name));
    return row;
  }

  void assign(const Key& key, const TomlValue& found, const std::string& where,
              const Place& place) {
    if (const auto* tables = std::get_if<TomlTables>(&found)) {
      if (key.tables() == nullptr)
        fail(where,
             fmt::format("{} is a list of tables; it must be {}", key.name, wanted_kind(key)));
      set(key, config_, rows_in(key, *tables, where, place));
      given_.insert(key.name);
      return;
    }
    if (const auto* other = std::get_if<UnsupportedValue>(&found))
      fail(where, fmt::format("{} is {}; it must be {}", key.name, other->kind, wanted_kind(key)));
    Value value = std::get<Value>(found);
    if (std::holds_alternative<double& (*)(Config&)>(key.member))
      if (const auto* whole = std::get_if<int64_t>(&value)) value = static_cast<double>(*whole);
    // A key that is a word may have "true" as one.
    if (const auto* truth = std::get_if<bool>(&value))
      if (std::ranges::find(key.limits.words, "true") != key.limits.words.end())
        value = std::string(*truth ? "true" : "false");
    // An empty array has no kind of its own.
    if (std::holds_alternative<std::vector<std::string>& (*)(Config&)>(key.member))
      if (const auto* none = std::get_if<std::vector<double>>(&value); none && none->empty())
        value = std::vector<std::string>{};
    if (std::holds_alternative<TablesMember>(key.member))
      if (const auto* none = std::get_if<std::vector<double>>(&value); none && none->empty())
        value = Rows{};
    if (const auto problem = problem_with(key, value)) fail(where, *problem);
    set(key, config_, value);
    given_.insert(key.name);
  }

  Config config_;
  std::set<std::string_view> given_;
  std::vector<std::pair<const Key*, std::string>> overrides_;  // with their `where`
};

}  // namespace

std::string read_text(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(path, "cannot be opened: " + core::errno_text(errno));
  std::string text;
  char block[1 << 16];
  ssize_t count;
  while ((count = ::read(file, block, sizeof block)) != 0) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    text.append(block, static_cast<std::size_t>(count));
    if (static_cast<int64_t>(text.size()) > kMostBytes) break;
  }
  const int error = count < 0 ? errno : 0;
  ::close(file);
  if (error != 0) fail(path, "cannot be read: " + core::errno_text(error));
  if (static_cast<int64_t>(text.size()) > kMostBytes)
    fail(path, "is over " + core::format_bytes(kMostBytes) + ", too large for a configuration");
  return text;
}

Config load(const std::string& path, std::span<const std::string> overrides) {
  Config config = parse(read_text(path), path, overrides);
  refuse_unbuilt(config);
  return config;
}

Config parse(std::string_view toml_text, std::string_view file_name,
             std::span<const std::string> overrides, const Completion& complete) {
  Reader reader;
  for (const TomlEntry& entry : read_toml(toml_text, file_name)) reader.read(entry, file_name);
  for (const std::string& each : overrides) reader.read(each);
  const Config config = reader.finish(complete);
  try {
    validate(config);
  } catch (const ConfigError& error) {
    fail(file_name, error.what());
  }
  reader.refuse_idle_overrides();
  return config;
}

}  // namespace trireme::config
