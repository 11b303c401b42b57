// Running statements.
#include "text/jinja/interpreter.h"

#include <fmt/format.h>

#include "text/jinja/interpreter_level.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"

namespace octavo::jinja {
namespace {

// A level of syntax uses some hundred bytes of stack; this many levels per level of macros stay far below a thread's.
constexpr int kLevelsPerDepth = 10;

}  // namespace

// The items of a loop that pass its `if`, found as the loop asks for them.
class FilteredItems : public IteratorObject {
 public:
  FilteredItems(Interpreter* interpreter, const ForStatement& node, std::shared_ptr<IteratorObject> items,
                ActivationPtr activation)
      : IteratorObject("generator", items->nesting + 1),
        interpreter_(interpreter),
        node_(node),
        items_(std::move(items)),
        activation_(std::move(activation)) {}

  bool next(Value* item) override {
    if (!started_) interpreter_->enter(node_.filter_scope, activation_);
    started_ = true;
    while (items_->next(item)) {
      spend_steps(1);
      interpreter_->assign(*node_.filter_target, *item, activation_);
      if (truthy(interpreter_->evaluate(*node_.filter, activation_))) return true;
    }
    return false;
  }

 private:
  Interpreter* interpreter_;
  const ForStatement& node_;
  std::shared_ptr<IteratorObject> items_;
  ActivationPtr activation_;
  bool started_ = false;
};

Interpreter::Interpreter(Variables variables, int max_depth, int64_t now)
    : variables_(std::move(variables)),
      max_level_(max_depth * kLevelsPerDepth),
      max_macro_depth_(max_depth),
      now_(now) {}

Interpreter::~Interpreter() {
  // Values and activations that contain each other are taken apart one by one.
  for (const auto& object : kept_) {
    if (auto* space = dynamic_cast<NamespaceObject*>(object.get())) space->attributes.clear();
    if (auto* loop = dynamic_cast<LoopObject*>(object.get())) loop->forget_changed();
  }
  for (const ActivationPtr& activation : finished_) activation->slots.clear();
}

std::string Interpreter::run(const Template& parsed) {
  TextBuffer buffer;
  output_ = &buffer;
  auto activation = std::make_shared<Activation>(parsed.slot_count, nullptr);
  finished_.push_back(activation);
  enter(parsed.scope, activation);
  run_block(parsed.body, activation);
  output_ = nullptr;
  return buffer.take();
}

void Interpreter::enter(const Scope& scope, const ActivationPtr& activation) {
  for (const Load& load : scope.loads) {
    Value value;
    if (load.kind == Load::Kind::kAlias) {
      value = slot(load.outer, activation);
    } else if (load.kind == Load::Kind::kContext) {
      if (const auto found = variables_.find(load.name); found != variables_.end()) value = found->second;
    }
    activation->slots[static_cast<size_t>(load.slot)] = std::move(value);
  }
}

void Interpreter::leave(const Scope& scope, const ActivationPtr& activation) {
  for (const Load& load : scope.loads) activation->slots[static_cast<size_t>(load.slot)] = Value();
}

Interpreter::Flow Interpreter::run_block(const Block& statements, const ActivationPtr& activation) {
  for (const StatementPtr& node : statements) {
    const Flow flow = run_statement(*node, activation);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_statement(const Statement& node, const ActivationPtr& activation) {
  const Level level(this);
  spend_steps(1);
  position_ = node.position;
  switch (node.kind) {
    case Statement::Kind::kData:
      output_->append(static_cast<const DataStatement&>(node).text);
      return Flow::kNext;
    case Statement::Kind::kOutput:
      for (const auto& expression : static_cast<const OutputStatement&>(node).expressions) {
        const Value value = evaluate(*expression, activation);
        output_->append(value.is_string() ? value.text() : to_text(value));
      }
      return Flow::kNext;
    case Statement::Kind::kSet:
      run_set(static_cast<const SetStatement&>(node), activation);
      return Flow::kNext;
    case Statement::Kind::kSetBlock:
      return run_set_block(static_cast<const SetBlockStatement&>(node), activation);
    case Statement::Kind::kIf:
      return run_if(static_cast<const IfStatement&>(node), activation);
    case Statement::Kind::kFor:
      return run_for(static_cast<const ForStatement&>(node), activation);
    case Statement::Kind::kWith:
      return run_with(static_cast<const WithStatement&>(node), activation);
    case Statement::Kind::kMacro: {
      const auto& macro = static_cast<const MacroStatement&>(node);
      slot(macro.slot, activation) =
          Value::object(Kind::kMacro, std::make_shared<MacroObject>(&macro.macro, activation));
      return Flow::kNext;
    }
    case Statement::Kind::kCallBlock:
      run_call_block(static_cast<const CallBlockStatement&>(node), activation);
      return Flow::kNext;
    case Statement::Kind::kFilterBlock:
      return run_filter_block(static_cast<const FilterBlockStatement&>(node), activation);
    case Statement::Kind::kGeneration: {
      const MacroObject block(&static_cast<const GenerationStatement&>(node).macro, activation);
      output_->append(call_macro(block, {}).text());
      return Flow::kNext;
    }
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::run_set(const SetStatement& node, const ActivationPtr& activation) {
  require_namespaces(*node.target, activation);
  Value value = evaluate(*node.value, activation);
  position_ = node.position;
  assign(*node.target, std::move(value), activation);
}

Interpreter::Flow Interpreter::run_if(const IfStatement& node, const ActivationPtr& activation) {
  for (const auto& branch : node.branches)
    if (truthy(evaluate(*branch.test, activation))) return run_block(branch.body, activation);
  return run_block(node.otherwise, activation);
}

Interpreter::Flow Interpreter::run_for(const ForStatement& node, const ActivationPtr& activation) {
  const Value sequence = evaluate(*node.sequence, activation);
  position_ = node.position;
  if (!node.recursive) return run_loop(node, sequence, activation, 0, nullptr);
  output_->append(run_recursive(node, sequence, activation, 0).text());
  return Flow::kNext;
}

Value Interpreter::run_recursive(const ForStatement& node, const Value& sequence, const ActivationPtr& closure,
                                 int depth0) {
  const Level level(this);
  if (depth0 >= max_macro_depth_) raise("maximum recursion depth exceeded");
  TextBuffer buffer;
  TextBuffer* const outer = std::exchange(output_, &buffer);
  auto activation = std::make_shared<Activation>(node.slot_count, closure);
  const FinishGuard guard(&finished_, activation);
  run_loop(node, sequence, activation, depth0, closure);
  output_ = outer;
  return Value::string(buffer.take());
}

Interpreter::Flow Interpreter::run_loop(const ForStatement& node, const Value& sequence,
                                        const ActivationPtr& activation, int depth0, const ActivationPtr& closure) {
  std::shared_ptr<IteratorObject> items = iterate(sequence);
  if (node.filter) items = std::make_shared<FilteredItems>(this, node, std::move(items), activation);
  const auto loop = std::make_shared<LoopObject>(node.filter ? Value() : sequence, std::move(items), depth0);
  if (node.recursive) {
    loop->recursive = &node;
    loop->closure = closure;
  }
  const Value loop_value = Value::object(Kind::kLoop, loop);
  bool none_finished = true;  // as in jinja2, where an iteration left by break or continue does not count
  for (Value current; loop->advance(&current);) {
    spend_steps(1);
    assign(*node.target, current, activation);
    activation->slots[static_cast<size_t>(node.loop_slot)] = loop_value;
    enter(node.scope, activation);
    const Flow flow = run_block(node.body, activation);
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNext) none_finished = false;
  }
  leave(node.scope, activation);
  activation->slots[static_cast<size_t>(node.loop_slot)] = Value();
  if (!none_finished || node.otherwise.empty()) return Flow::kNext;
  enter(node.else_scope, activation);
  const Flow flow = run_block(node.otherwise, activation);
  leave(node.else_scope, activation);
  return flow;
}

Interpreter::Flow Interpreter::run_with(const WithStatement& node, const ActivationPtr& activation) {
  enter(node.scope, activation);
  for (size_t i = 0; i < node.targets.size(); ++i)
    assign(*node.targets[i], evaluate(*node.values[i], activation), activation);
  const Flow flow = run_block(node.body, activation);
  leave(node.scope, activation);
  return flow;
}

Interpreter::Flow Interpreter::capture(const Block& statements, const ActivationPtr& activation, std::string* text) {
  TextBuffer buffer;
  TextBuffer* const outer = std::exchange(output_, &buffer);
  const Flow flow = run_block(statements, activation);
  output_ = outer;
  *text = buffer.take();
  return flow;
}

Interpreter::Flow Interpreter::run_set_block(const SetBlockStatement& node, const ActivationPtr& activation) {
  enter(node.scope, activation);
  std::string text;
  const Flow flow = capture(node.body, activation, &text);
  if (flow != Flow::kNext) return flow;
  Value value = Value::string(std::move(text));
  if (node.filter) value = evaluate_filter(*node.filter, activation, &value);
  require_namespaces(*node.target, activation);
  assign(*node.target, std::move(value), activation);
  leave(node.scope, activation);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_filter_block(const FilterBlockStatement& node, const ActivationPtr& activation) {
  enter(node.scope, activation);
  std::string text;
  const Flow flow = capture(node.body, activation, &text);
  if (flow != Flow::kNext) return flow;
  const Value input = Value::string(std::move(text));
  append_block(evaluate_filter(*node.filter, activation, &input));
  leave(node.scope, activation);
  return Flow::kNext;
}

// What filter and call blocks give is written as it is: jinja2 joins it with the rest of the text.
void Interpreter::append_block(const Value& value) {
  if (!value.is_string()) raise(fmt::format("sequence item 0: expected str instance, {} found", type_name(value)));
  output_->append(value.text());
}

void Interpreter::run_call_block(const CallBlockStatement& node, const ActivationPtr& activation) {
  const Value caller = Value::object(Kind::kMacro, std::make_shared<MacroObject>(&node.macro, activation));
  append_block(evaluate_call(*node.call, activation, &caller));
}

}  // namespace octavo::jinja
