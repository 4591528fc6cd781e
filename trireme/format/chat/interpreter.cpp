#include "trireme/format/chat/interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "trireme/core/error.h"
#include "trireme/format/chat/library.h"

namespace trireme::format::chat {

namespace {

constexpr int64_t kMostSteps =
    300'000;  // a conversation of thousands of messages takes a part of them
constexpr size_t kMostNamespaces = 100;  // each may hold the next
constexpr size_t kMostOutput = 64 << 20, kMostMade = 256 << 20;

class Interpreter {
 public:
  explicit Interpreter(Dict variables) { scopes_.push_back(std::move(variables)); }
  Interpreter(const Interpreter&) = delete;
  ~Interpreter() {
    for (auto& [key, scope] : namespaces_) scope->clear();
  }

  std::string run(const std::vector<Statement>& statements) {
    run_all(statements);
    return std::move(output_);
  }

 private:
  using Kind = ExpressionKind;

  /// Adds the line to what an operation says, once.
  template <class Body>
  auto at_line(int line, const Body& body) {
    try {
      return body();
    } catch (const Error& error) {
      const std::string sentence = error.what();
      if (sentence.starts_with("line ")) throw;
      throw Error(fmt::format("line {}: {}", line, sentence));
    }
  }

  void count_step() {
    if (++steps_ > kMostSteps) throw Error("the template does not come to an end");
  }

  void put(std::string_view text) {
    if (output_.size() + text.size() > kMostOutput) throw Error("its text is over 64 MiB");
    output_ += text;
  }

  void run_all(const std::vector<Statement>& statements) {
    for (const Statement& each : statements) at_line(each.line, [&] { run_one(each); });
  }

  void run_one(const Statement& one) {
    count_step();
    switch (one.kind) {
      case StatementKind::Text: return put(one.text);
      case StatementKind::Print: return put(printed(evaluate(one.conditions[0])));
      case StatementKind::Set: return set(one);
      case StatementKind::If: return run_if(one);
      case StatementKind::For: return run_for(one);
    }
  }

  void run_if(const Statement& one) {
    size_t branch = 0;
    while (branch < one.conditions.size() && !is_true(evaluate(one.conditions[branch]))) ++branch;
    if (branch < one.branches.size()) run_all(one.branches[branch]);
  }

  void run_for(const Statement& one) {
    const List all = elements_of(evaluate(one.conditions[0]));
    if (all.empty() && one.branches.size() > 1) return run_all(one.branches[1]);
    for (size_t i = 0; i < all.size(); ++i) {
      count_step();
      Dict scope;
      bind(one.targets, all[i], scope);
      scope.emplace_back("loop", loop_of(all, i));
      scopes_.push_back(std::move(scope));
      run_all(one.branches[0]);
      scopes_.pop_back();
    }
  }

  static void bind(const std::vector<std::string>& targets, const Value& value, Dict& scope) {
    if (targets.size() == 1) return void(scope.emplace_back(targets[0], value));
    const List parts = elements_of(value);
    if (parts.size() != targets.size())
      throw Error(fmt::format("a for has {} names for {} values", targets.size(), parts.size()));
    for (size_t i = 0; i < targets.size(); ++i) scope.emplace_back(targets[i], parts[i]);
  }

  static Value loop_of(const List& all, size_t i) {
    const auto index = static_cast<int64_t>(i), count = static_cast<int64_t>(all.size());
    return Value::of(Dict{{"index", index + 1},
                          {"index0", index},
                          {"revindex", count - index},
                          {"revindex0", count - index - 1},
                          {"first", i == 0},
                          {"last", i + 1 == all.size()},
                          {"length", count},
                          {"previtem", i == 0 ? Value() : all[i - 1]},
                          {"nextitem", i + 1 == all.size() ? Value() : all[i + 1]}});
  }

  void set(const Statement& one) {
    Value value = evaluate(one.conditions[0]);
    Dict* scope = &scopes_.back();
    if (one.targets.size() == 2) {
      const Value owner = look_up(one.targets[0]);
      scope = owner.dict();
      if (scope == nullptr || !namespaces_.contains(scope))
        throw Error(fmt::format("'{}' is no namespace, so '{}' cannot be set", one.targets[0],
                                one.targets[1]));
    }
    const std::string& name = one.targets.back();
    if (Value* old = find(*scope, name))
      *old = std::move(value);
    else
      scope->emplace_back(name, std::move(value));
  }

  Value look_up(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const Value* found = find(*scope, name)) return *found;
    return {};
  }

  Arguments arguments_of(const Expression& one, size_t first) {
    Arguments all;
    const size_t named = one.parts.size() - one.keywords.size();
    for (size_t i = first; i < one.parts.size(); ++i) {
      Value value = evaluate(one.parts[i]);
      if (i < named)
        all.listed.push_back(std::move(value));
      else
        all.named.emplace_back(one.keywords[i - named], std::move(value));
    }
    return all;
  }

  Value evaluate(const Expression& one) {
    count_step();
    Value value = at_line(one.line, [&] { return value_at(one); });
    if (const std::string* text = value.text(); text && (made_bytes_ += text->size()) > kMostMade)
      throw Error("it makes more than 256 MiB of text");
    return value;
  }

  Value value_at(const Expression& one) {
    const auto part = [&](size_t i) { return evaluate(one.parts[i]); };
    switch (one.kind) {
      case Kind::Constant: return one.value;
      case Kind::Name: return look_up(one.name);
      case Kind::ListOf: return list_of(one);
      case Kind::DictOf: return dict_of(one);
      case Kind::Attribute: return member_of(named_part(one), one.name);
      case Kind::Item: return item_of(named_part(one), part(1));
      case Kind::Slice: return slice_of(part(0), part(1), part(2), part(3));
      case Kind::Call: return called(one);
      case Kind::Method: return call_method(one.name, named_part(one), arguments_of(one, 1));
      case Kind::Filter: return call_filter(one.name, part(0), arguments_of(one, 1));
      case Kind::Test: return call_test(one.name, part(0), arguments_of(one, 1));
      case Kind::Not: return !is_true(part(0));
      case Kind::Negative: return binary("-", int64_t{0}, part(0));
      case Kind::And: {
        Value left = part(0);
        return is_true(left) ? part(1) : left;
      }
      case Kind::Or: {
        Value left = part(0);
        return is_true(left) ? left : part(1);
      }
      case Kind::Binary: return binary(one.name, part(0), part(1));
      case Kind::Choice: return is_true(part(1)) ? part(0) : part(2);
    }
    return {};
  }

  /// What a member is asked of; a name that is undefined is named.
  Value named_part(const Expression& one) {
    Value value = evaluate(one.parts[0]);
    const std::string& name = one.parts[0].name;
    if (value.is_undefined() && !name.empty()) throw Error(fmt::format("'{}' is undefined", name));
    return value;
  }

  Value called(const Expression& one) {
    Value result = call_function(one.name, arguments_of(one, 0));
    if (one.name == "namespace") {
      if (owners_.size() == kMostNamespaces)
        throw Error(fmt::format("it makes more than {} namespaces", kMostNamespaces));
      namespaces_.emplace(result.dict(), std::get<std::shared_ptr<Dict>>(result.it));
      owners_.push_back(result);
    }
    return result;
  }

  Value list_of(const Expression& one) {
    List all;
    for (const Expression& each : one.parts) all.push_back(evaluate(each));
    return Value::of(std::move(all));
  }

  Value dict_of(const Expression& one) {
    Dict all;
    for (size_t i = 0; i < one.parts.size(); i += 2) {
      const Value key = evaluate(one.parts[i]);
      if (!key.text()) throw Error(fmt::format("{} as a key is not supported", kind_of(key)));
      Value value = evaluate(one.parts[i + 1]);
      if (Value* old = find(all, *key.text()))
        *old = std::move(value);
      else
        all.emplace_back(*key.text(), std::move(value));
    }
    return Value::of(std::move(all));
  }

  std::vector<Dict> scopes_;
  /// They may hold themselves, so they are emptied in the end.
  std::map<const Dict*, std::shared_ptr<Dict>> namespaces_;
  List owners_;  // keep their addresses
  std::string output_;
  int64_t steps_ = 0;
  size_t made_bytes_ = 0;
};

}  // namespace

std::string run_template(const std::vector<Statement>& statements, Dict variables) {
  return Interpreter(std::move(variables)).run(statements);
}

}  // namespace trireme::format::chat
