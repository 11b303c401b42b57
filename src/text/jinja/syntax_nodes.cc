// Building expression nodes with their depth under control.
#include "text/jinja/syntax_nodes.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/token_stream.h"

namespace octavo::jinja {
namespace {

void set_depth(Expression* parent, int child_depth) {
  const int depth = std::max<int>(parent->depth, child_depth + 1);
  if (depth > kMaxExpressionDepth)
    throw Failure{.what = "the expression is nested too deeply",
                  .expected = fmt::format("at most {} levels", kMaxExpressionDepth),
                  .position = parent->position};
  parent->depth = static_cast<uint16_t>(depth);
}

}  // namespace

ExpressionPtr make_node(Expression::Kind kind, size_t position) {
  return std::make_unique<Expression>(kind, position);
}

void adopt_child(Expression* parent, ExpressionPtr child) {
  if (child) set_depth(parent, child->depth);
  parent->children.push_back(std::move(child));
}

void adopt_arguments(Expression* parent, std::unique_ptr<CallSite> arguments) {
  const auto see = [parent](const ExpressionPtr& child) {
    if (child) set_depth(parent, child->depth);
  };
  for (const auto& argument : arguments->positional) see(argument);
  for (const auto& [name, argument] : arguments->keywords) see(argument);
  see(arguments->star);
  see(arguments->double_star);
  parent->arguments = std::move(arguments);
}

}  // namespace octavo::jinja
