// Runs a syntax tree. One Interpreter renders one template once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/activation.h"
#include "text/jinja/ast.h"
#include "text/jinja/loop.h"
#include "text/jinja/macro.h"
#include "text/jinja/value.h"

namespace octavo::jinja {

// Text that grows within the budget.
class TextBuffer {
 public:
  void append(std::string_view text) {
    check_text_size(text_.size() + text.size());
    charge_.grow(text.size());
    text_ += text;
  }
  std::string take() { return std::move(text_); }

 private:
  Charge charge_{0};
  std::string text_;
};

class Interpreter {
 public:
  using Variables = std::unordered_map<std::string, Value>;
  // `variables`: the template's input and the globals. `now`: seconds since the epoch. All within a current Budget.
  Interpreter(Variables variables, int max_depth, int64_t now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string run(const Template& parsed);
  size_t position() const { return position_; }  // of what ran last, for errors

  // What built-in functions need.
  int64_t now() const { return now_; }
  Value call(const Value& callee, Arguments arguments);
  Value attribute(const Value& object, std::string_view name);  // object.name
  Value item(const Value& object, const Value& key);            // object[key]
  Value filter(const std::string& name, const Value& input, const Arguments& arguments);
  bool test(const std::string& name, const Value& input, const Arguments& arguments);
  Value make_namespace(Dict attributes);
  // Keeps a value that may come to contain itself until the end, when it is taken apart.
  void keep(std::shared_ptr<Object> object) { kept_.push_back(std::move(object)); }

 private:
  friend class FilteredItems;
  enum class Flow : uint8_t { kNext, kBreak, kContinue };

  // Statements.
  Flow run_block(const Block& statements, const ActivationPtr& activation);
  Flow run_statement(const Statement& node, const ActivationPtr& activation);
  Flow run_if(const IfStatement& node, const ActivationPtr& activation);
  Flow run_for(const ForStatement& node, const ActivationPtr& activation);
  Flow run_loop(const ForStatement& node, const Value& sequence, const ActivationPtr& activation, int depth0,
                const ActivationPtr& closure);
  Value run_recursive(const ForStatement& node, const Value& sequence, const ActivationPtr& closure, int depth0);
  Flow run_with(const WithStatement& node, const ActivationPtr& activation);
  Flow run_set_block(const SetBlockStatement& node, const ActivationPtr& activation);
  Flow run_filter_block(const FilterBlockStatement& node, const ActivationPtr& activation);
  void run_set(const SetStatement& node, const ActivationPtr& activation);
  void run_call_block(const CallBlockStatement& node, const ActivationPtr& activation);
  void append_block(const Value& value);
  void enter(const Scope& scope, const ActivationPtr& activation);
  void leave(const Scope& scope, const ActivationPtr& activation);
  // Runs statements with their output going to a string.
  Flow capture(const Block& statements, const ActivationPtr& activation, std::string* text);

  // Expressions.
  Value evaluate(const Expression& node, const ActivationPtr& activation);
  Value evaluate_name(const Expression& node, const ActivationPtr& activation);
  Value evaluate_compare(const Expression& node, const ActivationPtr& activation);
  Value evaluate_concatenate(const Expression& node, const ActivationPtr& activation);
  Value evaluate_conditional(const Expression& node, const ActivationPtr& activation);
  Value evaluate_items(const Expression& node, const ActivationPtr& activation);
  Value evaluate_dict(const Expression& node, const ActivationPtr& activation);
  Value evaluate_slice(const Expression& node, const ActivationPtr& activation);
  Value evaluate_call(const Expression& node, const ActivationPtr& activation, const Value* caller);
  Value evaluate_filter(const Expression& node, const ActivationPtr& activation, const Value* input);
  Value evaluate_test(const Expression& node, const ActivationPtr& activation);
  Arguments evaluate_arguments(const CallSite& site, const ActivationPtr& activation);
  void assign(const Expression& target, Value value, const ActivationPtr& activation);
  void assign_tuple(const Expression& target, const Value& value, const ActivationPtr& activation);
  void require_namespaces(const Expression& target, const ActivationPtr& activation);
  Value& slot(const SlotRef& place, const ActivationPtr& activation);

  // Macros.
  Value call_macro(const MacroObject& macro, Arguments arguments);
  Value run_macro(const MacroObject& macro, std::vector<Value> values, const Value& caller, Value kwargs,
                  Value varargs);
  void finish(ActivationPtr activation);

  // Counts levels of evaluation, which use the machine's stack.
  class Level;

  Variables variables_;
  TextBuffer* output_ = nullptr;
  size_t position_ = 0;
  int level_ = 0, max_level_;
  int macro_depth_ = 0, max_macro_depth_;
  int64_t now_;
  std::vector<ActivationPtr> finished_;  // activations that something still refers to
  std::vector<std::shared_ptr<Object>> kept_;
};

}  // namespace octavo::jinja
