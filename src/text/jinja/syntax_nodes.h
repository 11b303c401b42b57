// Building expression nodes with their depth under control.
#pragma once

#include "text/jinja/ast.h"

namespace octavo::jinja {

ExpressionPtr make_node(Expression::Kind kind, size_t position);
// Appends a child; null stands for one that is left out. Throws Failure when the tree becomes too deep.
void adopt_child(Expression* parent, ExpressionPtr child);
void adopt_arguments(Expression* parent, std::unique_ptr<CallSite> arguments);

}  // namespace octavo::jinja
