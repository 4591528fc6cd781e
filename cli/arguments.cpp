#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>

#include "trireme/core/env.h"
#include "trireme/core/error.h"

namespace trireme::cli {

namespace {

/// CLI11's help with our own usage line, and shorter texts beside the options.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string shape = "[OPTIONS]";
  std::string make_usage(const CLI::App*, std::string name) const override {
    return fmt::format("\nUsage: {} {}\n", name, shape);
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_items_expected_max() == 0) return "";
    return option->get_type_name() == "N" ? " N" : " VALUE";
  }
};

/// Of "-n,--ranks", "--ranks".
std::string long_name(const std::string& names) {
  return names.substr(names.find("--"));
}

/// "1500", "64K", "1M", "2G": decimal, as tokens are counted.
std::optional<int64_t> parse_count(std::string text) {
  int64_t unit = 1;
  if (text.ends_with('K')) unit = 1'000;
  if (text.ends_with('M')) unit = 1'000'000;
  if (text.ends_with('G')) unit = 1'000'000'000;
  if (unit > 1) text.pop_back();
  const auto number = core::parse_int(text);
  int64_t count = 0;
  if (!number || __builtin_mul_overflow(*number, unit, &count)) return {};
  return count;
}

}  // namespace

struct Arguments::Parser {
  CLI::App app;
  std::string command;
  std::shared_ptr<HelpFormatter> formatter = std::make_shared<HelpFormatter>();

  /// The option with dashes for underscores, "--nproc_per_node=4"; the value stays as it is.
  static std::string with_dashes(std::string option) {
    if (!option.starts_with("--")) return option;
    std::replace(option.begin(), std::find(option.begin(), option.end(), '='), '_', '-');
    return option;
  }

  /// Whether the word after this option is its value.
  bool takes_next(const std::string& option) const {
    if (option.find('=') != option.npos) return false;
    if (!option.starts_with("--") && option.size() > 2) return false;  // -n4
    const CLI::Option* known = app.get_option_no_throw(option);
    return known != nullptr && known->get_items_expected_max() > 0;
  }

  std::vector<std::string> listed_options() const {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_group().empty()) continue;
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    }
    return names;
  }

  CLI::Option* finish(CLI::Option* option, const std::string& section,
                      const std::string& variable) {
    option->group(section);
    if (!variable.empty()) option->envname(variable);
    return option;
  }

  void add_number(const std::string& names, const std::string& help, const std::string& section,
                  const std::string& variable, const std::function<void(int)>& take) {
    const std::string option = long_name(names);
    const auto read = [take, option](const std::string& text) {
      const auto number = core::parse_int(text);
      if (!number || *number < std::numeric_limits<int>::min() ||
          *number > std::numeric_limits<int>::max())
        throw ConfigError(fmt::format("{} {}: write a whole number, such as 4", option, text));
      take(static_cast<int>(*number));
    };
    auto* added = app.add_option_function<std::string>(names, read, help);
    finish(added->type_name("N"), section, variable);
  }
};

Arguments::Arguments(const std::string& command, const std::string& purpose)
    : parser_(std::make_unique<Parser>()) {
  parser_->command = command;
  parser_->app.name(command);
  parser_->app.description(purpose);
  parser_->app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  parser_->formatter->column_width(36);
  parser_->app.formatter(parser_->formatter);
  parser_->app.set_help_flag("-h,--help", "show this and exit");
}

Arguments::~Arguments() = default;

void Arguments::usage(const std::string& shape) {
  parser_->formatter->shape = shape;
}

void Arguments::footer(const std::string& text) {
  parser_->app.footer(text);
}

void Arguments::value(const std::string& names, std::string& target, const std::string& help,
                      const std::string& variable) {
  parser_->finish(parser_->app.add_option(names, target, help), section_, variable);
}

void Arguments::value(const std::string& names, int& target, const std::string& help,
                      const std::string& variable) {
  parser_->add_number(names, help, section_, variable, [&target](int number) { target = number; });
}

void Arguments::value(const std::string& names, std::optional<int>& target, const std::string& help,
                      const std::string& variable) {
  parser_->add_number(names, help, section_, variable, [&target](int number) { target = number; });
}

void Arguments::count(const std::string& names, int64_t& target, const std::string& help) {
  const std::string option = long_name(names);
  const auto read = [&target, option](const std::string& text) {
    const auto number = parse_count(text);
    if (!number)
      throw ConfigError(
          fmt::format("{} {}: write a whole number, such as 1000000 or 1M", option, text));
    target = *number;
  };
  auto* added = parser_->app.add_option_function<std::string>(names, read, help);
  parser_->finish(added->type_name("N"), section_, "");
}

void Arguments::flag(const std::string& names, bool& target, const std::string& help,
                     const std::string& variable) {
  parser_->finish(parser_->app.add_flag(names, target, help), section_, variable);
}

std::vector<std::string> Arguments::parse_until_program(const std::vector<std::string>& args) {
  std::vector<std::string> options;
  size_t next = 0;
  while (next < args.size()) {
    const std::string& word = args[next];
    if (word == "--" && ++next > 0) break;
    if (word.size() < 2 || word[0] != '-') break;
    options.push_back(Parser::with_dashes(word));
    ++next;
    if (parser_->takes_next(options.back()) && next < args.size()) options.push_back(args[next++]);
  }
  try {
    std::ranges::reverse(options);  // CLI11 takes them in reverse
    parser_->app.parse(options);
  } catch (const CLI::CallForHelp&) {
    throw HelpWanted{parser_->app.help(), parser_->listed_options(), actions_, values_};
  } catch (const CLI::ParseError& error) {
    std::string what = error.what();
    if (const auto* extras = dynamic_cast<const CLI::ExtrasError*>(&error); extras != nullptr)
      what = "unknown option " + what.substr(what.rfind(' ') + 1);
    throw ConfigError(fmt::format("{} ('{} --help' lists the options)", what, parser_->command));
  }
  return {args.begin() + static_cast<std::ptrdiff_t>(next), args.end()};
}

void Arguments::parse(const std::vector<std::string>& args) {
  const auto rest = parse_until_program(args);
  if (!rest.empty())
    throw ConfigError(fmt::format("unexpected '{}' (see '{} --help')", rest[0], parser_->command));
}

std::vector<std::string> Arguments::parse_anywhere(std::vector<std::string> args) {
  std::vector<std::string> words;
  while (!(args = parse_until_program(args)).empty()) {
    words.push_back(args.front());
    args.erase(args.begin());
  }
  return words;
}

}  // namespace trireme::cli
