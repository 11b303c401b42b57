// Walking the names of a syntax tree.
#pragma once

#include <functional>
#include <string_view>

#include "text/jinja/ast.h"

namespace octavo::jinja {

// The direct children of an expression, arguments included, in the order of evaluation.
void for_each_child(const Expression& node, const std::function<void(Expression*)>& visit);
// Every kName and kNamespaceRef below `node`, itself included.
void visit_names(const Expression& node, const std::function<void(const Expression&)>& visit);
// Whether the statements, nested ones included, read `name` before they assign it.
bool reads_undeclared(const Block& statements, std::string_view name);

}  // namespace octavo::jinja
