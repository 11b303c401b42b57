// jinja2's scoping. A scope (loop body, macro, with, ...) first looks over all of its own statements: which names it
// only reads, and which it assigns. A name that an outer scope knows is read there; one that is assigned here becomes a
// variable of this scope, which starts as a copy of the outer one; what nobody assigns comes from the template's input.
#include "text/jinja/symbols.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <unordered_map>

#include "base/check.h"
#include "text/jinja/budget.h"
#include "text/jinja/builtins.h"
#include "text/jinja/name_visitor.h"

namespace octavo::jinja {
namespace {

// A function has an activation of its own at run time: the template, a macro, a recursive loop.
struct Function {
  int level = 0;
  int slot_count = 0;
};

class Symbols {
 public:
  struct Place {
    int level = 0, slot = -1;
  };
  Symbols(Symbols* parent, Function* function) : parent_(parent), function_(function) {}

  Function* function() const { return function_; }

  const Place* find(const std::string& name) const {
    for (const Symbols* scope = this; scope != nullptr; scope = scope->parent_)
      if (const auto found = scope->places_.find(name); found != scope->places_.end()) return &found->second;
    return nullptr;
  }

  int declare_parameter(const std::string& name) {
    const int slot = define(name);
    loads_.erase(slot);
    return slot;
  }

  void load(const std::string& name) {
    if (find(name) != nullptr) return;
    const int slot = define(name);
    loads_[slot] = {.kind = Load::Kind::kContext, .slot = slot, .outer = {}, .name = name};
  }

  // In a branch of `if` the name may stay unassigned: then it means what it means outside.
  void store(const std::string& name, bool in_branch) {
    if (places_.contains(name)) return;
    const Place* outer = parent_ != nullptr ? parent_->find(name) : nullptr;
    const Place copy = outer != nullptr ? *outer : Place{};
    const int slot = define(name);
    if (outer != nullptr) {
      loads_[slot] = {.kind = Load::Kind::kAlias,
                      .slot = slot,
                      .outer = {.hops = function_->level - copy.level, .slot = copy.slot},
                      .name = {}};
    } else {
      const auto kind = in_branch ? Load::Kind::kContext : Load::Kind::kUndefined;
      loads_[slot] = {.kind = kind, .slot = slot, .outer = {}, .name = name};
    }
  }

  Scope scope() const {
    Scope scope;
    for (const auto& [slot, load] : loads_) scope.loads.push_back(load);
    return scope;
  }

 private:
  int define(const std::string& name) {
    const auto [found, is_new] = places_.try_emplace(name);
    if (is_new) found->second = {.level = function_->level, .slot = function_->slot_count++};
    return found->second.slot;
  }

  Symbols* parent_;
  Function* function_;
  std::unordered_map<std::string, Place> places_;
  std::map<int, Load> loads_;
};

// Looks over the statements of one scope, without entering the scopes inside.
class Analyzer {
 public:
  explicit Analyzer(Symbols* symbols) : symbols_(symbols) {}

  void parameters(const Expression& target) {
    visit_names(target, [this](const Expression& name) {
      if (name.kind == Expression::Kind::kName) symbols_->declare_parameter(name.name);
    });
  }

  void expression(const Expression* node) {
    if (node == nullptr) return;
    visit_names(*node, [this](const Expression& name) {
      if (name.store && name.kind == Expression::Kind::kName) {
        symbols_->store(name.name, branch_depth_ > 0);
      } else {
        symbols_->load(name.name);
      }
    });
  }

  void block(const Block& statements) {
    for (const StatementPtr& node : statements) statement(*node);
  }

 private:
  void statement(const Statement& node) {
    switch (node.kind) {
      case Statement::Kind::kOutput:
        for (const auto& output : static_cast<const OutputStatement&>(node).expressions) expression(output.get());
        return;
      case Statement::Kind::kSet:
        expression(static_cast<const SetStatement&>(node).value.get());
        expression(static_cast<const SetStatement&>(node).target.get());
        return;
      case Statement::Kind::kSetBlock:
        expression(static_cast<const SetBlockStatement&>(node).target.get());
        return;
      case Statement::Kind::kIf: {
        const auto& branches = static_cast<const IfStatement&>(node);
        expression(branches.branches[0].test.get());
        ++branch_depth_;
        for (const auto& branch : branches.branches) {
          if (&branch != &branches.branches[0]) expression(branch.test.get());
          block(branch.body);
        }
        block(branches.otherwise);
        --branch_depth_;
        return;
      }
      case Statement::Kind::kFor:
        return expression(static_cast<const ForStatement&>(node).sequence.get());
      case Statement::Kind::kWith:
        for (const auto& value : static_cast<const WithStatement&>(node).values) expression(value.get());
        return;
      case Statement::Kind::kMacro:
        return symbols_->store(static_cast<const MacroStatement&>(node).macro.name, branch_depth_ > 0);
      case Statement::Kind::kCallBlock:
        return expression(static_cast<const CallBlockStatement&>(node).call.get());
      case Statement::Kind::kFilterBlock:
        return expression(static_cast<const FilterBlockStatement&>(node).filter.get());
      default:
        return;
    }
  }

  Symbols* symbols_;
  int branch_depth_ = 0;
};

class Resolver {
 public:
  void run(Template* parsed) {
    Function function;
    Symbols symbols(nullptr, &function);
    Analyzer(&symbols).block(parsed->body);
    block(parsed->body, &symbols, false);
    parsed->scope = symbols.scope();
    parsed->slot_count = function.slot_count;
  }

 private:
  static void place(Expression* name, const Symbols& symbols) {
    const Symbols::Place* found = symbols.find(name->name);
    OCTAVO_CHECK(found != nullptr, "every name has a place after analysis");
    name->slot = {.hops = symbols.function()->level - found->level, .slot = found->slot};
  }

  // `soft`: directly within `if`, where unknown filters are errors only once they are used.
  static void expression(Expression* node, const Symbols& symbols, bool soft) {
    if (node == nullptr) return;
    if (node->kind == Expression::Kind::kName || node->kind == Expression::Kind::kNamespaceRef) place(node, symbols);
    if (!soft && node->kind == Expression::Kind::kFilter && !has_filter(node->name))
      throw Failure{.what = fmt::format("No filter named '{}'.", node->name), .position = node->position};
    if (!soft && node->kind == Expression::Kind::kTest && !has_test(node->name))
      throw Failure{.what = fmt::format("No test named '{}'.", node->name), .position = node->position};
    const bool inner_soft = soft || node->kind == Expression::Kind::kConditional;
    for_each_child(*node, [&](Expression* child) { expression(child, symbols, inner_soft); });
  }

  void block(const Block& statements, Symbols* symbols, bool soft) {
    for (const StatementPtr& node : statements) statement(node.get(), symbols, soft);
  }

  void statement(Statement* node, Symbols* symbols, bool soft) {
    switch (node->kind) {
      case Statement::Kind::kOutput:
        for (const auto& output : static_cast<OutputStatement*>(node)->expressions)
          expression(output.get(), *symbols, soft);
        return;
      case Statement::Kind::kSet: {
        auto* set = static_cast<SetStatement*>(node);
        refuse_loop_target(*set->target);
        expression(set->value.get(), *symbols, soft);
        return expression(set->target.get(), *symbols, soft);
      }
      case Statement::Kind::kSetBlock:
        return set_block(static_cast<SetBlockStatement*>(node), symbols, soft);
      case Statement::Kind::kIf: {
        auto* branches = static_cast<IfStatement*>(node);
        for (auto& branch : branches->branches) {
          expression(branch.test.get(), *symbols, true);
          block(branch.body, symbols, true);
        }
        return block(branches->otherwise, symbols, true);
      }
      case Statement::Kind::kFor:
        return loop(static_cast<ForStatement*>(node), symbols, soft);
      case Statement::Kind::kWith:
        return with(static_cast<WithStatement*>(node), symbols, soft);
      case Statement::Kind::kMacro: {
        auto* macro_node = static_cast<MacroStatement*>(node);
        macro(&macro_node->macro, node->position, symbols);
        Expression name(Expression::Kind::kName, node->position);
        name.name = macro_node->macro.name;
        place(&name, *symbols);
        macro_node->slot = name.slot;
        return;
      }
      case Statement::Kind::kCallBlock:
        macro(&static_cast<CallBlockStatement*>(node)->macro, node->position, symbols);
        return expression(static_cast<CallBlockStatement*>(node)->call.get(), *symbols, soft);
      case Statement::Kind::kFilterBlock: {
        auto* filter = static_cast<FilterBlockStatement*>(node);
        Symbols inner(symbols, symbols->function());
        Analyzer analyzer(&inner);
        analyzer.block(filter->body);
        analyzer.expression(filter->filter.get());
        block(filter->body, &inner, false);
        expression(filter->filter.get(), inner, false);
        filter->scope = inner.scope();
        return;
      }
      case Statement::Kind::kGeneration:
        return macro(&static_cast<GenerationStatement*>(node)->macro, node->position, symbols);
      default:
        return;
    }
  }

  void refuse_loop_target(const Expression& target) const {
    if (loop_depth_ == 0) return;
    visit_names(target, [](const Expression& name) {
      if (name.kind == Expression::Kind::kName && name.name == "loop")
        throw Failure{.what = "Can't assign to special loop variable in for-loop target", .position = name.position};
    });
  }

  void set_block(SetBlockStatement* node, Symbols* symbols, bool soft) {
    refuse_loop_target(*node->target);
    Symbols inner(symbols, symbols->function());
    Analyzer analyzer(&inner);
    analyzer.block(node->body);
    analyzer.expression(node->filter.get());
    block(node->body, &inner, false);
    expression(node->target.get(), *symbols, soft);
    expression(node->filter.get(), inner, false);
    node->scope = inner.scope();
  }

  void with(WithStatement* node, Symbols* symbols, bool soft) {
    Symbols inner(symbols, symbols->function());
    Analyzer analyzer(&inner);
    for (const auto& target : node->targets) analyzer.parameters(*target);
    analyzer.block(node->body);
    for (const auto& value : node->values) expression(value.get(), *symbols, soft);
    for (const auto& target : node->targets) expression(target.get(), inner, false);
    block(node->body, &inner, false);
    node->scope = inner.scope();
  }

  void loop(ForStatement* node, Symbols* symbols, bool soft) {
    ++loop_depth_;
    refuse_loop_target(*node->target);
    Function own{.level = symbols->function()->level + 1};
    Function* function = node->recursive ? &own : symbols->function();
    Symbols body(symbols, function), filter(symbols, function), otherwise(symbols, function);
    node->loop_slot = body.declare_parameter("loop");
    Analyzer body_analyzer(&body);
    body_analyzer.parameters(*node->target);
    body_analyzer.block(node->body);
    Analyzer(&otherwise).block(node->otherwise);
    if (node->filter) {
      Analyzer filter_analyzer(&filter);
      filter_analyzer.parameters(*node->filter_target);
      filter_analyzer.expression(node->filter.get());
      expression(node->filter_target.get(), filter, false);
      expression(node->filter.get(), filter, false);
    }
    expression(node->target.get(), body, false);
    expression(node->sequence.get(), *symbols, soft);
    block(node->body, &body, false);
    block(node->otherwise, &otherwise, false);
    --loop_depth_;
    node->scope = body.scope();
    node->filter_scope = filter.scope();
    node->else_scope = otherwise.scope();
    node->slot_count = own.slot_count;
  }

  void macro(MacroBody* node, size_t position, Symbols* symbols) {
    Function function{.level = symbols->function()->level + 1};
    Symbols inner(symbols, &function);
    Analyzer analyzer(&inner);
    bool explicit_caller = false, explicit_kwargs = false, explicit_varargs = false, caller_has_default = false;
    const size_t first_default = node->parameters.size() - node->defaults.size();
    for (size_t i = 0; i < node->parameters.size(); ++i) {
      const std::string& name = node->parameters[i]->name;
      analyzer.parameters(*node->parameters[i]);
      explicit_kwargs |= name == "kwargs";
      explicit_varargs |= name == "varargs";
      if (name != "caller") continue;
      explicit_caller = true;
      caller_has_default = i >= first_default;
    }
    for (const auto& value : node->defaults) analyzer.expression(value.get());
    analyzer.block(node->body);
    if (reads_undeclared(node->body, "caller")) {
      if (explicit_caller && !caller_has_default)
        throw Failure{.what =
                          "When defining macros or call blocks the special \"caller\" argument must be omitted or be "
                          "given a default.",
                      .position = position};
      if (!explicit_caller) node->caller_slot = inner.declare_parameter("caller");
      node->uses_caller = true;
    }
    if (!explicit_kwargs && reads_undeclared(node->body, "kwargs"))
      node->kwargs_slot = inner.declare_parameter("kwargs");
    if (!explicit_varargs && reads_undeclared(node->body, "varargs"))
      node->varargs_slot = inner.declare_parameter("varargs");
    for (const auto& parameter : node->parameters) expression(parameter.get(), inner, false);
    for (const auto& value : node->defaults) expression(value.get(), inner, false);
    block(node->body, &inner, false);
    node->scope = inner.scope();
    node->slot_count = function.slot_count;
  }

  int loop_depth_ = 0;
};

}  // namespace

void resolve_names(Template* parsed) {
  Resolver().run(parsed);
}

}  // namespace octavo::jinja
