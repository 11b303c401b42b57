// The expression half of the parser: one function per level of precedence, loosest first.
#include "text/jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "text/jinja/budget.h"
#include "text/jinja/syntax_nodes.h"

namespace octavo::jinja {
namespace {

using Node = Expression::Kind;

ExpressionPtr make_binary(Node kind, Operator op, ExpressionPtr left, ExpressionPtr right) {
  auto node = make_node(kind, left->position);
  node->operators.push_back(op);
  adopt_child(node.get(), std::move(left));
  adopt_child(node.get(), std::move(right));
  return node;
}

struct Spelling {
  std::string_view text;
  Operator op;
};

std::optional<Operator> find_operator(const Token& token, std::initializer_list<Spelling> choices) {
  if (token.type != TokenType::kOperator) return std::nullopt;
  for (const Spelling& choice : choices)
    if (token.text == choice.text) return choice.op;
  return std::nullopt;
}

std::string_view kind_name(Node kind) {
  constexpr std::string_view kNames[] = {"const",   "name",    "nsref", "tuple",   "list",   "dict",     "binexpr",
                                         "unary",   "and",     "or",    "compare", "concat", "condexpr", "getattr",
                                         "getitem", "getitem", "call",  "filter",  "test"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace

ExpressionPtr ExpressionParser::expression(bool with_conditional) {
  const DepthGuard guard(depth_, tokens_);
  return with_conditional ? conditional() : or_expression();
}

ExpressionPtr ExpressionParser::conditional() {
  ExpressionPtr then = or_expression();
  while (tokens_.skip_name("if")) {
    auto node = make_node(Node::kConditional, then->position);
    adopt_child(node.get(), or_expression());
    adopt_child(node.get(), std::move(then));
    if (tokens_.skip_name("else")) adopt_child(node.get(), expression());
    then = std::move(node);
  }
  return then;
}

ExpressionPtr ExpressionParser::or_expression() {
  ExpressionPtr left = and_expression();
  while (tokens_.skip_name("or")) left = make_binary(Node::kOr, Operator::kNot, std::move(left), and_expression());
  return left;
}

ExpressionPtr ExpressionParser::and_expression() {
  ExpressionPtr left = not_expression();
  while (tokens_.skip_name("and")) left = make_binary(Node::kAnd, Operator::kNot, std::move(left), not_expression());
  return left;
}

ExpressionPtr ExpressionParser::not_expression() {
  if (!tokens_.at_name("not")) return comparison();
  const DepthGuard guard(depth_, tokens_);
  auto node = make_node(Node::kUnary, tokens_.next().position);
  node->operators.push_back(Operator::kNot);
  adopt_child(node.get(), not_expression());
  return node;
}

ExpressionPtr ExpressionParser::comparison() {
  ExpressionPtr first = sum();
  ExpressionPtr node;
  while (true) {
    const auto found = find_operator(tokens_.current(), {{"==", Operator::kEqual},
                                                         {"!=", Operator::kNotEqual},
                                                         {"<", Operator::kLess},
                                                         {"<=", Operator::kLessEqual},
                                                         {">", Operator::kGreater},
                                                         {">=", Operator::kGreaterEqual}});
    Operator op = Operator::kIn;
    if (found) {
      op = *found;
      tokens_.next();
    } else if (tokens_.at_name("not") && tokens_.look().is_name("in")) {
      op = Operator::kNotIn;
      tokens_.next();
      tokens_.next();
    } else if (!tokens_.skip_name("in")) {
      break;
    }
    if (!node) {
      node = make_node(Node::kCompare, first->position);
      adopt_child(node.get(), std::move(first));
    }
    node->operators.push_back(op);
    adopt_child(node.get(), sum());
  }
  return node ? std::move(node) : std::move(first);
}

ExpressionPtr ExpressionParser::sum() {
  ExpressionPtr left = concatenation();
  while (const auto found = find_operator(tokens_.current(), {{"+", Operator::kAdd}, {"-", Operator::kSubtract}})) {
    tokens_.next();
    left = make_binary(Node::kBinary, *found, std::move(left), concatenation());
  }
  return left;
}

ExpressionPtr ExpressionParser::concatenation() {
  ExpressionPtr first = product();
  if (!tokens_.at_operator("~")) return first;
  auto node = make_node(Node::kConcatenate, first->position);
  adopt_child(node.get(), std::move(first));
  while (tokens_.skip_operator("~")) adopt_child(node.get(), product());
  return node;
}

ExpressionPtr ExpressionParser::product() {
  ExpressionPtr left = power();
  while (const auto found = find_operator(tokens_.current(), {{"*", Operator::kMultiply},
                                                              {"/", Operator::kDivide},
                                                              {"//", Operator::kFloorDivide},
                                                              {"%", Operator::kModulo}})) {
    tokens_.next();
    left = make_binary(Node::kBinary, *found, std::move(left), power());
  }
  return left;
}

ExpressionPtr ExpressionParser::power() {
  ExpressionPtr left = unary(true);
  while (tokens_.skip_operator("**")) left = make_binary(Node::kBinary, Operator::kPower, std::move(left), unary(true));
  return left;
}

ExpressionPtr ExpressionParser::unary(bool with_filter) {
  ExpressionPtr node;
  if (tokens_.at_operator("-") || tokens_.at_operator("+")) {
    const DepthGuard guard(depth_, tokens_);
    const Operator op = tokens_.at_operator("-") ? Operator::kNegate : Operator::kPlus;
    node = make_node(Node::kUnary, tokens_.next().position);
    node->operators.push_back(op);
    adopt_child(node.get(), unary(false));
  } else {
    node = primary(false);
  }
  node = postfix(std::move(node));
  return with_filter ? filter_or_test(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::primary(bool with_namespace) {
  const Token& token = tokens_.current();
  const auto constant = [&token](Value value) {
    auto node = make_node(Node::kConstant, token.position);
    node->value = std::move(value);
    return node;
  };
  switch (token.type) {
    case TokenType::kName: {
      tokens_.next();
      if (token.text == "true" || token.text == "True") return constant(Value::boolean(true));
      if (token.text == "false" || token.text == "False") return constant(Value::boolean(false));
      if (token.text == "none" || token.text == "None") return constant(Value::none());
      const bool is_attribute = with_namespace && tokens_.skip_operator(".");
      auto node = make_node(is_attribute ? Node::kNamespaceRef : Node::kName, token.position);
      node->name = token.text;
      if (is_attribute) node->attribute = tokens_.expect(TokenType::kName, "name").text;
      return node;
    }
    case TokenType::kString: {
      std::string text;
      while (tokens_.at(TokenType::kString)) text += tokens_.next().text;
      return constant(Value::string(std::move(text)));
    }
    case TokenType::kInteger:
      tokens_.next();
      return constant(Value::integer(token.integer));
    case TokenType::kFloat:
      tokens_.next();
      return constant(Value::real(token.real));
    default:
      break;
  }
  if (tokens_.skip_operator("(")) {
    ExpressionPtr node = tuple({.in_parentheses = true});
    tokens_.expect_operator(")");
    return node;
  }
  if (tokens_.at_operator("[")) return list_literal();
  if (tokens_.at_operator("{")) return dict_literal();
  tokens_.fail(fmt::format("unexpected '{}'", describe(token)));
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  return tokens_.at(TokenType::kVariableEnd) || tokens_.at(TokenType::kBlockEnd) || tokens_.at_operator(")") ||
         (!end_name.empty() && tokens_.at_name(end_name));
}

ExpressionPtr ExpressionParser::tuple(TupleOptions options) {
  const size_t position = tokens_.current().position;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) tokens_.expect_operator(",");
    if (at_tuple_end(options.end_name)) break;
    if (options.only_primaries) {
      const DepthGuard guard(depth_, tokens_);
      items.push_back(primary(options.with_namespace));
    } else {
      items.push_back(expression(options.with_conditional));
    }
    if (!tokens_.at_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!options.in_parentheses)
      tokens_.fail(fmt::format("Expected an expression, got '{}'", describe(tokens_.current())));
  }
  auto node = make_node(Node::kTuple, position);
  for (ExpressionPtr& item : items) adopt_child(node.get(), std::move(item));
  return node;
}

void ExpressionParser::mark_as_target(Expression* target) {
  const bool reserved = target->kind == Node::kConstant;
  if (target->kind == Node::kTuple) {
    for (const ExpressionPtr& child : target->children) mark_as_target(child.get());
  } else if (reserved || (target->kind != Node::kName && target->kind != Node::kNamespaceRef)) {
    TokenStream::fail_at(target->position, fmt::format("can't assign to '{}'", kind_name(target->kind)));
  }
  target->store = true;
}

ExpressionPtr ExpressionParser::assignment_target(TupleOptions options) {
  options.only_primaries = true;
  ExpressionPtr target = tuple(options);
  mark_as_target(target.get());
  return target;
}

ExpressionPtr ExpressionParser::name_target() {
  const Token& token = tokens_.expect(TokenType::kName, "name");
  for (const std::string_view reserved : {"true", "false", "none", "True", "False", "None"})
    if (token.text == reserved) TokenStream::fail_at(token.position, "can't assign to 'name'");
  auto node = make_node(Node::kName, token.position);
  node->name = token.text;
  node->store = true;
  return node;
}

ExpressionPtr ExpressionParser::list_literal() {
  auto node = make_node(Node::kList, tokens_.next().position);
  while (!tokens_.at_operator("]")) {
    if (!node->children.empty()) tokens_.expect_operator(",");
    if (tokens_.at_operator("]")) break;
    adopt_child(node.get(), expression());
  }
  tokens_.expect_operator("]");
  return node;
}

ExpressionPtr ExpressionParser::dict_literal() {
  auto node = make_node(Node::kDict, tokens_.next().position);
  while (!tokens_.at_operator("}")) {
    if (!node->children.empty()) tokens_.expect_operator(",");
    if (tokens_.at_operator("}")) break;
    adopt_child(node.get(), expression());
    tokens_.expect_operator(":");
    adopt_child(node.get(), expression());
  }
  tokens_.expect_operator("}");
  return node;
}

}  // namespace octavo::jinja
