// The expression half of the parser, continued: what follows a value - attributes, items, calls, filters, tests.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/expression_parser.h"
#include "text/jinja/syntax_nodes.h"

namespace octavo::jinja {

using Node = Expression::Kind;

ExpressionPtr ExpressionParser::postfix(ExpressionPtr node) {
  while (true) {
    if (tokens_.at_operator(".") || tokens_.at_operator("[")) {
      node = subscript(std::move(node));
    } else if (tokens_.at_operator("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::filter_or_test(ExpressionPtr node) {
  while (true) {
    if (tokens_.at_operator("|")) {
      node = filters(std::move(node), false);
    } else if (tokens_.at_name("is")) {
      node = test(std::move(node));
    } else if (tokens_.at_operator("(")) {
      node = call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::subscript(ExpressionPtr object) {
  const Token& token = tokens_.next();
  if (token.text == ".") {
    const Token& key = tokens_.next();
    if (key.type == TokenType::kName) {
      auto node = make_node(Node::kAttribute, token.position);
      node->name = key.text;
      adopt_child(node.get(), std::move(object));
      return node;
    }
    if (key.type != TokenType::kInteger) TokenStream::fail_at(key.position, "expected name or number");
    auto index = make_node(Node::kConstant, key.position);
    index->value = Value::integer(key.integer);
    auto node = make_node(Node::kItem, token.position);
    adopt_child(node.get(), std::move(object));
    adopt_child(node.get(), std::move(index));
    return node;
  }
  std::vector<ExpressionPtr> keys;
  while (!tokens_.at_operator("]")) {
    if (!keys.empty()) tokens_.expect_operator(",");
    ExpressionPtr key;
    if (!tokens_.at_operator(":")) key = expression();
    if (tokens_.at_operator(":")) {
      auto node = slice(std::move(object), token.position);
      adopt_child(node.get(), std::move(key));
      std::rotate(node->children.begin() + 1, node->children.end() - 1, node->children.end());
      if (!keys.empty() || !tokens_.at_operator("]")) tokens_.fail("a slice within a tuple of keys is not supported");
      tokens_.next();
      return node;
    }
    keys.push_back(std::move(key));
  }
  tokens_.expect_operator("]");
  auto node = make_node(Node::kItem, token.position);
  adopt_child(node.get(), std::move(object));
  if (keys.size() == 1) {
    adopt_child(node.get(), std::move(keys[0]));
  } else {
    auto key = make_node(Node::kTuple, token.position);
    for (ExpressionPtr& part : keys) adopt_child(key.get(), std::move(part));
    adopt_child(node.get(), std::move(key));
  }
  return node;
}

// At the first ":" of object[start:stop:step]; the node gets object, stop and step.
ExpressionPtr ExpressionParser::slice(ExpressionPtr object, size_t position) {
  auto node = make_node(Node::kSlice, position);
  adopt_child(node.get(), std::move(object));
  for (int part = 0; part < 2; ++part) {
    ExpressionPtr bound;
    if (tokens_.skip_operator(":") && !tokens_.at_operator(":") && !tokens_.at_operator("]") &&
        !tokens_.at_operator(","))
      bound = expression();
    adopt_child(node.get(), std::move(bound));
  }
  return node;
}

ExpressionPtr ExpressionParser::call(ExpressionPtr callee) {
  auto node = make_node(Node::kCall, tokens_.current().position);
  adopt_child(node.get(), std::move(callee));
  adopt_arguments(node.get(), call_arguments());
  return node;
}

std::unique_ptr<CallSite> ExpressionParser::call_arguments() {
  const size_t position = tokens_.current().position;
  tokens_.expect_operator("(");
  auto site = std::make_unique<CallSite>();
  const auto ensure = [position](bool right) {
    if (!right) TokenStream::fail_at(position, "invalid syntax for function call expression");
  };
  for (bool first = true; !tokens_.at_operator(")"); first = false) {
    if (!first) {
      tokens_.expect_operator(",");
      if (tokens_.at_operator(")")) break;
    }
    if (tokens_.skip_operator("*")) {
      ensure(!site->star && !site->double_star);
      site->star = expression();
    } else if (tokens_.skip_operator("**")) {
      ensure(!site->double_star);
      site->double_star = expression();
    } else if (tokens_.at(TokenType::kName) && tokens_.look().is_operator("=")) {
      ensure(!site->double_star);
      std::string name = tokens_.next().text;
      for (const auto& [other, value] : site->keywords)
        if (other == name) tokens_.fail(fmt::format("keyword argument repeated: {}", name));
      tokens_.next();
      site->keywords.emplace_back(std::move(name), expression());
    } else {
      ensure(!site->star && !site->double_star && site->keywords.empty());
      site->positional.push_back(expression());
    }
  }
  tokens_.expect_operator(")");
  return site;
}

std::string ExpressionParser::dotted_name() {
  std::string name = tokens_.expect(TokenType::kName, "name").text;
  while (tokens_.skip_operator(".")) name += "." + tokens_.expect(TokenType::kName, "name").text;
  return name;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr input, bool start_inline) {
  ExpressionPtr node = std::move(input);
  while (start_inline || tokens_.at_operator("|")) {
    if (!start_inline) tokens_.next();
    start_inline = false;
    auto filter = make_node(Node::kFilter, tokens_.current().position);
    filter->name = dotted_name();
    if (is_unsupported_filter(filter->name))
      TokenStream::fail_at(filter->position, fmt::format("the filter '{}' is not supported", filter->name));
    adopt_child(filter.get(), std::move(node));
    adopt_arguments(filter.get(), tokens_.at_operator("(") ? call_arguments() : std::make_unique<CallSite>());
    node = std::move(filter);
  }
  return node;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr input) {
  const size_t position = tokens_.next().position;  // "is"
  const bool negated = tokens_.skip_name("not");
  auto node = make_node(Node::kTest, position);
  node->name = dotted_name();
  adopt_child(node.get(), std::move(input));
  const Token& token = tokens_.current();
  const bool starts_value = token.type == TokenType::kName || token.type == TokenType::kString ||
                            token.type == TokenType::kInteger || token.type == TokenType::kFloat ||
                            token.is_operator("[") || token.is_operator("{");
  auto arguments = std::make_unique<CallSite>();
  if (token.is_operator("(")) {
    arguments = call_arguments();
  } else if (starts_value && !token.is_name("else") && !token.is_name("or") && !token.is_name("and")) {
    if (token.is_name("is")) tokens_.fail("You cannot chain multiple tests with is");
    const DepthGuard guard(depth_, tokens_);
    arguments->positional.push_back(postfix(primary(false)));
  }
  adopt_arguments(node.get(), std::move(arguments));
  if (!negated) return node;
  auto negation = make_node(Node::kUnary, position);
  negation->operators.push_back(Operator::kNot);
  adopt_child(negation.get(), std::move(node));
  return negation;
}

}  // namespace octavo::jinja
