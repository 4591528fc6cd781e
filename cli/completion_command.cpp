#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "trireme/config/keys.h"
#include "trireme/core/error.h"
#include "trireme/pipeline/generators.h"

namespace trireme::cli {

namespace {

constexpr const char* kCompletionPurpose =
    "Prints a script that makes the Tab key complete commands, options, and the keys and values of "
    "a\n"
    "configuration.";

constexpr const char* kCompletionExamples =
    "  trireme completion bash\n"
    "  trireme completion zsh\n\n"
    "In ~/.bashrc:    source <(trireme completion bash)\n"
    "In ~/.zshrc:     autoload -U compinit && compinit; source <(trireme completion zsh)\n";

/// Both scripts find out what was typed, and how many words before the cursor, and then pick one of
/// these lists. `@NAME@` is filled in.
constexpr const char* kLists = R"(  local actions="" options="" keys="" values="" found=""
  case "$command" in
    "") actions="@COMMANDS@ help" ;;
    help) actions="@COMMANDS@" ;;
@CASES@
  esac
  case "$command $last" in
@OPTION_VALUES@
  esac
  if [[ $current == -* ]]; then
    found="$options"
  elif [[ -n $values ]]; then
    found="$values"
  elif ((count < 3)) && [[ -n $actions ]]; then
    found="$actions"
  elif [[ -n $keys && " $typed " == *".toml "* ]]; then
    found="@KEYS@"
    case "${current%%=*}" in
@VALUES@
    esac
  fi)";

constexpr const char* kBash = R"(# Completion of trireme for bash: source <(trireme completion bash)
_trireme() {
  # By the line itself: bash would cut words at '='.
  local line="${COMP_LINE:0:COMP_POINT}" current=""
  local -a before
  read -ra before <<< "$line"
  if [[ $line != *[[:space:]] ]]; then
    current="${before[-1]}"
    unset 'before[-1]'
  fi
  local command="${before[1]}" typed="${before[*]}" last="${before[-1]}" count=${#before[@]}
@LISTS@
  COMPREPLY=($(compgen -W "$found" -- "$current"))
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
  if [[ $current == *=* && $COMP_WORDBREAKS == *=* ]]; then
    COMPREPLY=("${COMPREPLY[@]#*=}")
  fi
}
complete -o default -F _trireme trireme
)";

constexpr const char* kZsh = R"(#compdef trireme
# Completion of trireme for zsh: source <(trireme completion zsh), after compinit
_trireme() {
  local current="$words[CURRENT]" command="" typed="${words[*]}"
  local last="$words[CURRENT-1]" count=$((CURRENT - 1))
  ((count > 1)) && command="$words[2]"
@LISTS@
  local -a all=(${=found}) open=(${(M)${=found}:#*=})
  compadd -S '' -a open && return
  all=(${all:|open})
  compadd -a all || _files
}
if [[ "$funcstack[1]" == "_trireme" ]]; then _trireme "$@"; else compdef _trireme trireme; fi
)";

/// What a command's --help says.
HelpWanted help_of(const Command& command, std::vector<std::string> args) {
  args.push_back("--help");
  try {
    command.run(args);
  } catch (const HelpWanted& help) {
    return help;
  }
  return {};
}

bool takes_keys(std::string_view command) {
  return command == "train" || command == "verify" || command == "bench" || command == "eval";
}

std::string cases() {
  std::string text;
  for (const Command& command : commands()) {
    HelpWanted help = help_of(command, {});
    for (const std::string& action : help.actions)
      if (std::string_view(command.name) == "bench")
        std::ranges::copy(help_of(command, {action}).options, std::back_inserter(help.options));
    std::ranges::sort(help.options);
    help.options.erase(std::unique(help.options.begin(), help.options.end()), help.options.end());
    text += fmt::format("    {}) actions=\"{}\" options=\"{}\"{} ;;\n", command.name,
                        fmt::join(help.actions, " "), fmt::join(help.options, " "),
                        takes_keys(command.name) ? " keys=yes" : "");
  }
  text.pop_back();
  return text;
}

std::string option_values() {
  std::string text;
  for (const Command& command : commands())
    for (const auto& [option, words] : help_of(command, {}).values)
      text += fmt::format("    \"{} {}\") values=\"{}\" ;;\n", command.name, option,
                          fmt::join(words, " "));
  text.pop_back();
  return text;
}

/// What a key can be, where there are few: words of its own, or the schedules.
std::vector<std::string_view> values_of(const config::Key& key) {
  if (key.wants_bool()) return {"true", "false"};
  if (key.name != "pipeline.schedule") return {key.limits.words.begin(), key.limits.words.end()};
  return pipeline::names();
}

std::string key_names() {
  std::string text;
  for (const config::Key& key : config::keys())
    if (key.built == config::Built::Now)
      text += fmt::format("{}{}=", text.empty() ? "" : " ", key.name);
  return text;
}

std::string key_values() {
  std::string text;
  for (const config::Key& key : config::keys()) {
    const auto words = values_of(key);
    if (key.built == config::Built::Later || words.empty()) continue;
    std::string all;
    for (const std::string_view word : words)
      all += fmt::format("{}{}={}", all.empty() ? "" : " ", key.name, word);
    text += fmt::format("      {}) [[ $current == *=* ]] && found=\"{}\" ;;\n", key.name, all);
  }
  text.pop_back();
  return text;
}

std::string filled(std::string script) {
  std::string names;
  for (const Command& command : commands())
    names += fmt::format("{}{}", names.empty() ? "" : " ", command.name);
  const std::pair<std::string_view, std::string> fields[] = {
      {"@LISTS@", kLists},     {"@COMMANDS@", names},
      {"@CASES@", cases()},    {"@OPTION_VALUES@", option_values()},
      {"@KEYS@", key_names()}, {"@VALUES@", key_values()}};
  for (const auto& [name, value] : fields)
    for (size_t at = script.find(name); at != script.npos;
         at = script.find(name, at + value.size()))
      script.replace(at, name.size(), value);
  return script;
}

}  // namespace

int completion_command(const std::vector<std::string>& args) {
  Arguments arguments("trireme completion", kCompletionPurpose);
  arguments.usage("bash|zsh");
  arguments.footer(kCompletionExamples);
  arguments.actions({"bash", "zsh"});
  const auto words = arguments.parse_anywhere(args);
  if (words.size() != 1 || (words[0] != "bash" && words[0] != "zsh"))
    throw ConfigError("use 'trireme completion bash' or 'trireme completion zsh'");
  fmt::print("{}", filled(words[0] == "bash" ? kBash : kZsh));
  return 0;
}

}  // namespace trireme::cli
