#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::cli {

/// Thrown for --help; not an error.
struct HelpWanted {
  std::string text;
  std::vector<std::string> options;  ///< the options that --help lists: "--ranks", "-n"
  std::vector<std::string> actions;  ///< the words that may come first: "make", "info"
  /// Of an option that takes one of a few words, these: {"--format", {"grid", "svg"}}.
  std::vector<std::pair<std::string, std::vector<std::string>>> values{};
};

/// The options of one command. Only arguments.cpp includes the parser's large header.
///
///     Arguments arguments("trireme run", "Starts N ranks of a program.");
///     arguments.value("-n,--nproc-per-node", ranks, "how many ranks", "PET_NPROC_PER_NODE");
///     const auto program = arguments.parse_until_program(args);
///
/// An option may be written with underscores for dashes, as torchrun's are. Parsing throws
/// HelpWanted, or ConfigError with one sentence.
class Arguments {
 public:
  Arguments(const std::string& command, const std::string& purpose);
  ~Arguments();
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  /// The usage line, e.g. "[OPTIONS] [--] PROGRAM [ARG]...", and the text below the options.
  void usage(const std::string& shape);
  void footer(const std::string& text);
  /// The words that may come first, such as "make" and "info".
  void actions(std::vector<std::string> words) { actions_ = std::move(words); }
  /// The words that an option takes, for completion.
  void words(std::string option, std::vector<std::string> all) {
    values_.emplace_back(std::move(option), std::move(all));
  }
  /// A heading for the options that follow; with kHidden --help does not list them.
  static constexpr const char* kHidden = "";
  void section(const std::string& name) { section_ = name; }

  /// An option with a value; its default comes from the environment variable `variable`.
  void value(const std::string& names, std::string& target, const std::string& help,
             const std::string& variable = "");
  void value(const std::string& names, int& target, const std::string& help,
             const std::string& variable = "");
  void value(const std::string& names, std::optional<int>& target, const std::string& help,
             const std::string& variable = "");
  /// A count, which may end in K, M or G: 10^3, 10^6, 10^9.
  void count(const std::string& names, int64_t& target, const std::string& help);
  void flag(const std::string& names, bool& target, const std::string& help,
            const std::string& variable = "");

  /// Reads options up to the first other word, or "--"; returns what follows.
  std::vector<std::string> parse_until_program(const std::vector<std::string>& args);
  /// Reads options; any other word is an error.
  void parse(const std::vector<std::string>& args);
  /// Reads options anywhere on the line, and returns the other words.
  std::vector<std::string> parse_anywhere(std::vector<std::string> args);

 private:
  struct Parser;

  std::unique_ptr<Parser> parser_;
  std::string section_ = "Options";
  std::vector<std::string> actions_;
  std::vector<std::pair<std::string, std::vector<std::string>>> values_;
};

}  // namespace trireme::cli
