// The grammar, from what binds least to what binds most:
//
//   choice   or [if or [else choice]]
//   or, and, not
//   compare  sum {(== != < <= > >= in, not in) sum}
//   sum      join {(+ -) join}        join  product {~ product}       product  unary {(* / // %)
//   unary} unary    [-] primary {.name [item] (arguments) | filter, is test}
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "trireme/core/error.h"
#include "trireme/format/chat/lexer.h"
#include "trireme/format/chat/syntax.h"

namespace trireme::format::chat {

namespace {

constexpr int kMostNested = 200;  // the parser recurses

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokens_of(source)) {}

  std::vector<Statement> run() {
    std::vector<Statement> all = statements({});
    if (peek().type != TokenType::End) fail(fmt::format("'{}' without its beginning", word_));
    return all;
  }

 private:
  using Kind = ExpressionKind;

  [[noreturn]] void fail(const std::string& sentence) const {
    throw Error(fmt::format("line {}: {}", peek().line, sentence));
  }
  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  bool is(TokenType type, std::string_view text) const {
    return peek().type == type && peek().text == text;
  }
  bool is_sign(std::string_view text) const { return is(TokenType::Sign, text); }
  bool is_word(std::string_view text) const { return is(TokenType::Name, text); }
  bool take(TokenType type, std::string_view text) {
    if (!is(type, text)) return false;
    ++at_;
    return true;
  }
  bool take_sign(std::string_view text) { return take(TokenType::Sign, text); }
  bool take_word(std::string_view text) { return take(TokenType::Name, text); }
  void need_sign(std::string_view text) {
    if (!take_sign(text)) fail(fmt::format("'{}' is expected before '{}'", text, peek().text));
  }
  void need(TokenType type, std::string_view what) {
    if (peek().type != type) fail(fmt::format("{} is expected before '{}'", what, peek().text));
    ++at_;
  }
  std::string name() {
    const std::string text = peek().text;
    need(TokenType::Name, "a name");
    return text;
  }

  /// Counts how deep the grammar's functions call each other.
  struct Nested {
    explicit Nested(Parser& its_parser) : parser(its_parser) {
      if (++parser.depth_ > kMostNested)
        parser.fail(fmt::format("it is nested more than {} deep", kMostNested));
    }
    ~Nested() { --parser.depth_; }
    Parser& parser;
  };

  /// Up to a tag that begins with one of `ends`, which is left in word_ and passed over.
  std::vector<Statement> statements(const std::vector<std::string_view>& ends) {
    const Nested nested(*this);
    std::vector<Statement> all;
    for (;;) {
      const Token& token = peek();
      word_.clear();
      if (token.type == TokenType::End) {
        if (!ends.empty()) fail(fmt::format("'{}' is missing", ends.back()));
        return all;
      }
      Statement one{.line = token.line};
      ++at_;
      if (token.type == TokenType::Text) {
        one.text = token.text;
      } else if (token.type == TokenType::PrintBegin) {
        one.kind = StatementKind::Print;
        one.conditions.push_back(choice());
        need(TokenType::PrintEnd, "}}");
      } else {
        word_ = name();
        if (std::ranges::find(ends, word_) != ends.end()) return all;
        const std::string word = word_;
        if (word == "if")
          one = if_statement(one.line);
        else if (word == "for")
          one = for_statement(one.line);
        else if (word == "set")
          one = set_statement(one.line);
        else if (word.starts_with("e")) {
          --at_;
          fail(fmt::format("'{}' is not expected here", word));
        } else
          fail(fmt::format("the tag '{}' is not supported; if, for and set are", word));
      }
      all.push_back(std::move(one));
    }
  }

  void end_tag() { need(TokenType::BlockEnd, "%}"); }

  Statement if_statement(int line) {
    Statement one{.kind = StatementKind::If, .line = line};
    do {
      one.conditions.push_back(choice());
      end_tag();
      one.branches.push_back(statements({"elif", "else", "endif"}));
    } while (word_ == "elif");
    if (word_ == "else") {
      end_tag();
      one.branches.push_back(statements({"endif"}));
    }
    end_tag();
    return one;
  }

  Statement for_statement(int line) {
    Statement one{.kind = StatementKind::For, .line = line};
    do one.targets.push_back(name());
    while (take_sign(","));
    if (!take_word("in")) fail("'in' is expected in a for");
    one.conditions.push_back(logical_or());
    if (is_word("if") || is_word("recursive"))
      fail(fmt::format("'{}' in a for is not supported", peek().text));
    end_tag();
    one.branches.push_back(statements({"else", "endfor"}));
    if (word_ == "else") {
      end_tag();
      one.branches.push_back(statements({"endfor"}));
    }
    end_tag();
    return one;
  }

  Statement set_statement(int line) {
    Statement one{.kind = StatementKind::Set, .line = line};
    one.targets.push_back(name());
    if (take_sign(".")) one.targets.push_back(name());
    if (!take_sign("=")) fail("'=' is expected in a set; blocks of set are not supported");
    one.conditions.push_back(choice());
    end_tag();
    return one;
  }

  Expression node(Kind kind, std::vector<Expression> parts, std::string called = "") const {
    return {kind, peek().line, std::move(called), {}, std::move(parts), {}};
  }

  Expression choice() {
    const Nested nested(*this);
    Expression value = logical_or();
    if (!take_word("if")) return value;
    Expression condition = logical_or();
    Expression other = take_word("else") ? choice() : node(Kind::Constant, {});
    return node(Kind::Choice, {std::move(value), std::move(condition), std::move(other)});
  }

  Expression logical_or() {
    Expression left = logical_and();
    while (take_word("or")) {
      Expression right = logical_and();
      left = node(Kind::Or, {std::move(left), std::move(right)});
    }
    return left;
  }

  Expression logical_and() {
    Expression left = logical_not();
    while (take_word("and")) {
      Expression right = logical_not();
      left = node(Kind::And, {std::move(left), std::move(right)});
    }
    return left;
  }

  Expression logical_not() {
    const Nested nested(*this);
    if (take_word("not")) return node(Kind::Not, {logical_not()});
    return compare();
  }

  Expression compare() {
    Expression left = sum();
    bool compared = false;
    for (;; compared = true) {
      std::string sign = peek().text;
      const bool is_compare =
          peek().type == TokenType::Sign && (sign == "==" || sign == "!=" || sign == "<" ||
                                             sign == "<=" || sign == ">" || sign == ">=");
      const bool not_in = is_word("not") && peek(1).type == TokenType::Name && peek(1).text == "in";
      if (!is_compare && !is_word("in") && !not_in) return left;
      if (compared) fail("comparisons in a chain are not supported; use 'and'");
      at_ += not_in ? 2 : 1;
      if (not_in) sign = "in";
      Expression right = sum();
      left = node(Kind::Binary, {std::move(left), std::move(right)}, sign);
      if (not_in) left = node(Kind::Not, {std::move(left)});
    }
  }

  /// Signs of one level, from the left.
  template <class Inner>
  Expression binary(std::initializer_list<std::string_view> signs, Inner inner) {
    Expression left = inner();
    for (;;) {
      const auto sign = std::ranges::find_if(signs, [&](auto each) { return is_sign(each); });
      if (sign == signs.end()) return left;
      ++at_;
      Expression right = inner();
      left = node(Kind::Binary, {std::move(left), std::move(right)}, std::string(*sign));
    }
  }
  Expression sum() {
    return binary({"+", "-"}, [&] { return join(); });
  }
  Expression join() {
    return binary({"~"}, [&] { return product(); });
  }
  Expression product() {
    return binary({"*", "//", "/", "%"}, [&] { return unary(); });
  }

  Expression unary() {
    const Nested nested(*this);
    if (take_sign("-")) return node(Kind::Negative, {unary()});
    if (take_sign("+")) return unary();
    return postfix(primary());
  }

  Expression postfix(Expression left) {
    for (;;) {
      if (take_sign(".")) {
        const std::string member = name();
        const bool calls = is_sign("(");
        left = node(calls ? Kind::Method : Kind::Attribute, {std::move(left)}, member);
        if (calls) arguments(left);
      } else if (take_sign("[")) {
        left = item(std::move(left));
      } else if (is_sign("(")) {
        if (left.kind != Kind::Name) fail("only functions and methods can be called");
        left = node(Kind::Call, {}, left.name);
        arguments(left);
      } else if (take_sign("|")) {
        left = node(Kind::Filter, {std::move(left)}, name());
        if (is_sign("(")) arguments(left);
      } else if (take_word("is")) {
        const bool negated = take_word("not");
        left = node(Kind::Test, {std::move(left)}, name());
        if (is_sign("(")) arguments(left);
        if (negated) left = node(Kind::Not, {std::move(left)});
      } else {
        return left;
      }
    }
  }

  Expression item(Expression left) {
    const auto missing = [&] { return node(Kind::Constant, {}); };
    std::vector<Expression> parts;
    parts.push_back(std::move(left));
    bool slice = false;
    for (int part = 0; part < 3; ++part) {
      parts.push_back(is_sign(":") || is_sign("]") ? missing() : choice());
      if (!take_sign(":")) break;
      slice = true;
    }
    need_sign("]");
    if (!slice) {
      if (parts[1].kind == Kind::Constant && parts[1].value.is_undefined())
        fail("an item is expected between [ and ]");
      return node(Kind::Item, std::move(parts));
    }
    while (parts.size() < 4) parts.push_back(missing());
    return node(Kind::Slice, std::move(parts));
  }

  void arguments(Expression& call) {
    need_sign("(");
    while (!is_sign(")")) {
      const bool keyword =
          peek().type == TokenType::Name && peek(1).type == TokenType::Sign && peek(1).text == "=";
      if (keyword) {
        call.keywords.push_back(name());
        ++at_;
      } else if (!call.keywords.empty()) {
        fail("an argument without a name follows one with a name");
      }
      call.parts.push_back(choice());
      if (!take_sign(",")) break;
    }
    need_sign(")");
  }

  Expression constant(Value value) const {
    Expression one = node(Kind::Constant, {});
    one.value = std::move(value);
    return one;
  }

  Expression primary() {
    const Token token = peek();
    ++at_;
    if (token.type == TokenType::String) {
      std::string text = token.text;
      for (; peek().type == TokenType::String; ++at_) text += peek().text;
      return constant(std::move(text));
    }
    if (token.type == TokenType::Number) return number(token.text);
    if (token.type == TokenType::Name) {
      if (token.text == "true" || token.text == "True") return constant(true);
      if (token.text == "false" || token.text == "False") return constant(false);
      if (token.text == "none" || token.text == "None") return constant(None{});
      return node(Kind::Name, {}, token.text);
    }
    if (token.type == TokenType::Sign && token.text == "(") {
      Expression inside = choice();
      if (is_sign(",")) fail("tuples are not supported; use a list");
      need_sign(")");
      return inside;
    }
    if (token.type == TokenType::Sign && (token.text == "[" || token.text == "{"))
      return collection(token.text == "[" ? Kind::ListOf : Kind::DictOf);
    --at_;
    fail(fmt::format("'{}' is not expected", token.text));
  }

  Expression number(const std::string& text) const {
    const char* end = text.data() + text.size();
    if (text.find('.') == text.npos) {
      int64_t whole = 0;
      if (std::from_chars(text.data(), end, whole).ptr != end) fail("'" + text + "' is no number");
      return constant(whole);
    }
    double value = 0;
    if (std::from_chars(text.data(), end, value).ptr != end) fail("'" + text + "' is no number");
    return constant(value);
  }

  Expression collection(Kind kind) {
    const std::string_view end = kind == Kind::ListOf ? "]" : "}";
    Expression all = node(kind, {});
    while (!is_sign(end)) {
      all.parts.push_back(choice());
      if (kind == Kind::DictOf) {
        need_sign(":");
        all.parts.push_back(choice());
      }
      if (!take_sign(",")) break;
    }
    need_sign(end);
    return all;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  std::string word_;
};

}  // namespace

std::vector<Statement> parse_template(std::string_view source) {
  return Parser(source).run();
}

}  // namespace trireme::format::chat
