// Walking the names of a syntax tree.
#include "text/jinja/name_visitor.h"

namespace octavo::jinja {
namespace {

// Stops at the first assignment to the name or the first use of it, in the order of the text.
class UndeclaredSearch {
 public:
  explicit UndeclaredSearch(std::string_view name) : name_(name) {}

  bool found() const { return found_; }

  void block(const Block& statements) {
    for (const StatementPtr& node : statements)
      if (!done_) statement(*node);
  }

 private:
  void expression(const ExpressionPtr& node) {
    if (!node) return;
    visit_names(*node, [this](const Expression& name) {
      if (done_ || name.kind != Expression::Kind::kName || name.name != name_) return;
      done_ = true;
      found_ = !name.store;
    });
  }

  void expressions(const std::vector<ExpressionPtr>& nodes) {
    for (const ExpressionPtr& node : nodes) expression(node);
  }

  void macro(const MacroBody& node) {
    expressions(node.parameters);
    expressions(node.defaults);
    block(node.body);
  }

  void statement(const Statement& node) {
    switch (node.kind) {
      case Statement::Kind::kOutput:
        return expressions(static_cast<const OutputStatement&>(node).expressions);
      case Statement::Kind::kSet:
        expression(static_cast<const SetStatement&>(node).target);
        return expression(static_cast<const SetStatement&>(node).value);
      case Statement::Kind::kSetBlock:
        expression(static_cast<const SetBlockStatement&>(node).target);
        expression(static_cast<const SetBlockStatement&>(node).filter);
        return block(static_cast<const SetBlockStatement&>(node).body);
      case Statement::Kind::kIf: {
        const auto& branches = static_cast<const IfStatement&>(node);
        for (const auto& branch : branches.branches) {
          expression(branch.test);
          block(branch.body);
        }
        return block(branches.otherwise);
      }
      case Statement::Kind::kFor: {
        const auto& loop = static_cast<const ForStatement&>(node);
        expression(loop.target);
        expression(loop.sequence);
        block(loop.body);
        block(loop.otherwise);
        return expression(loop.filter);
      }
      case Statement::Kind::kWith:
        expressions(static_cast<const WithStatement&>(node).targets);
        expressions(static_cast<const WithStatement&>(node).values);
        return block(static_cast<const WithStatement&>(node).body);
      case Statement::Kind::kMacro:
        return macro(static_cast<const MacroStatement&>(node).macro);
      case Statement::Kind::kCallBlock:
        expression(static_cast<const CallBlockStatement&>(node).call);
        return macro(static_cast<const CallBlockStatement&>(node).macro);
      case Statement::Kind::kFilterBlock:
        block(static_cast<const FilterBlockStatement&>(node).body);
        return expression(static_cast<const FilterBlockStatement&>(node).filter);
      case Statement::Kind::kGeneration:
        return block(static_cast<const GenerationStatement&>(node).macro.body);
      default:
        return;
    }
  }

  std::string_view name_;
  bool done_ = false, found_ = false;
};

}  // namespace

void for_each_child(const Expression& node, const std::function<void(Expression*)>& visit) {
  for (const ExpressionPtr& child : node.children)
    if (child) visit(child.get());
  if (!node.arguments) return;
  for (const ExpressionPtr& argument : node.arguments->positional) visit(argument.get());
  for (const auto& [name, argument] : node.arguments->keywords) visit(argument.get());
  if (node.arguments->star) visit(node.arguments->star.get());
  if (node.arguments->double_star) visit(node.arguments->double_star.get());
}

void visit_names(const Expression& node, const std::function<void(const Expression&)>& visit) {
  if (node.kind == Expression::Kind::kName || node.kind == Expression::Kind::kNamespaceRef) visit(node);
  for_each_child(node, [&visit](Expression* child) { visit_names(*child, visit); });
}

bool reads_undeclared(const Block& statements, std::string_view name) {
  UndeclaredSearch search(name);
  search.block(statements);
  return search.found();
}

}  // namespace octavo::jinja
