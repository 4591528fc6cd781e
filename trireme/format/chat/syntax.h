#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trireme/format/chat/value.h"

namespace trireme::format::chat {

enum class ExpressionKind {
  Constant,   // value
  Name,       // name
  ListOf,     // parts
  DictOf,     // key, value, key, value ...
  Attribute,  // parts[0].name
  Item,       // parts[0][parts[1]]
  Slice,      // parts[0][parts[1]:parts[2]:parts[3]]; a missing one is an undefined constant
  Call,       // name(arguments)
  Method,     // parts[0].name(arguments)
  Filter,     // parts[0] | name(arguments)
  Test,       // parts[0] is name(arguments)
  Not,
  Negative,
  And,
  Or,
  Binary,  // parts[0] name parts[1]: + - * / // % ~ == != < <= > >= in
  Choice,  // parts[0] if parts[1] else parts[2]
};

struct Expression {
  ExpressionKind kind = ExpressionKind::Constant;
  int line = 1;
  std::string name;
  Value value;
  std::vector<Expression> parts;      ///< what it works on, then arguments
  std::vector<std::string> keywords;  ///< names of the last arguments
};

enum class StatementKind { Text, Print, If, For, Set };

struct Statement {
  StatementKind kind = StatementKind::Text;
  int line = 1;
  std::string text{};                  ///< Text
  std::vector<std::string> targets{};  ///< For; Set: a name, or a namespace's name and its member
  std::vector<Expression>
      conditions{};  ///< Print and Set: the value; For: the list; If: one a branch
  std::vector<std::vector<Statement>>
      branches{};  ///< If: one more than conditions if it has an else
};

/// The statements of a template. Throws Error with the line.
std::vector<Statement> parse_template(std::string_view source);

}  // namespace trireme::format::chat
