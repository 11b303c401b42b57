// Evaluating expressions and assigning to targets.
#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/interpreter_level.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/slices.h"

namespace octavo::jinja {

Value& Interpreter::slot(const SlotRef& place, const ActivationPtr& activation) {
  Activation* home = activation.get();
  for (int hop = 0; hop < place.hops; ++hop) home = home->outer.get();
  return home->slots[static_cast<size_t>(place.slot)];
}

Value Interpreter::evaluate(const Expression& node, const ActivationPtr& activation) {
  const Level level(this);
  spend_steps(1);
  switch (node.kind) {
    case Expression::Kind::kConstant:
      return node.value;
    case Expression::Kind::kName:
      return evaluate_name(node, activation);
    case Expression::Kind::kTuple:
    case Expression::Kind::kList:
      return evaluate_items(node, activation);
    case Expression::Kind::kDict:
      return evaluate_dict(node, activation);
    case Expression::Kind::kBinary: {
      const Value left = evaluate(*node.children[0], activation);
      const Value right = evaluate(*node.children[1], activation);
      position_ = node.position;
      return binary(node.operators[0], left, right);
    }
    case Expression::Kind::kUnary: {
      const Value operand = evaluate(*node.children[0], activation);
      position_ = node.position;
      return unary(node.operators[0], operand);
    }
    case Expression::Kind::kAnd:
    case Expression::Kind::kOr: {
      Value left = evaluate(*node.children[0], activation);
      if (truthy(left) == (node.kind == Expression::Kind::kOr)) return left;
      return evaluate(*node.children[1], activation);
    }
    case Expression::Kind::kCompare:
      return evaluate_compare(node, activation);
    case Expression::Kind::kConcatenate:
      return evaluate_concatenate(node, activation);
    case Expression::Kind::kConditional:
      return evaluate_conditional(node, activation);
    case Expression::Kind::kAttribute: {
      const Value object = evaluate(*node.children[0], activation);
      position_ = node.position;
      return attribute(object, node.name);
    }
    case Expression::Kind::kItem: {
      const Value object = evaluate(*node.children[0], activation);
      const Value key = evaluate(*node.children[1], activation);
      position_ = node.position;
      return item(object, key);
    }
    case Expression::Kind::kSlice:
      return evaluate_slice(node, activation);
    case Expression::Kind::kCall:
      return evaluate_call(node, activation, nullptr);
    case Expression::Kind::kFilter:
      return evaluate_filter(node, activation, nullptr);
    case Expression::Kind::kTest:
      return evaluate_test(node, activation);
    case Expression::Kind::kNamespaceRef:
      break;
  }
  raise("an assignment target cannot be evaluated");
}

Value Interpreter::evaluate_name(const Expression& node, const ActivationPtr& activation) {
  const Value& value = slot(node.slot, activation);
  if (!value.is_missing()) return value;
  position_ = node.position;
  return Value::undefined(repr_of_text(node.name) + " is undefined");
}

Value Interpreter::evaluate_compare(const Expression& node, const ActivationPtr& activation) {
  Value left = evaluate(*node.children[0], activation);
  for (size_t i = 0; i < node.operators.size(); ++i) {
    Value right = evaluate(*node.children[i + 1], activation);
    position_ = node.position;
    if (!compare(node.operators[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_concatenate(const Expression& node, const ActivationPtr& activation) {
  std::string text;
  for (const ExpressionPtr& child : node.children) {
    append_text(&text, evaluate(*child, activation));
    check_text_size(text.size());
  }
  return Value::string(std::move(text));
}

Value Interpreter::evaluate_conditional(const Expression& node, const ActivationPtr& activation) {
  if (truthy(evaluate(*node.children[0], activation))) return evaluate(*node.children[1], activation);
  if (node.children.size() > 2) return evaluate(*node.children[2], activation);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
}

Value Interpreter::evaluate_items(const Expression& node, const ActivationPtr& activation) {
  std::vector<Value> items;
  items.reserve(node.children.size());
  for (const ExpressionPtr& child : node.children) items.push_back(evaluate(*child, activation));
  position_ = node.position;
  return node.kind == Expression::Kind::kList ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

Value Interpreter::evaluate_dict(const Expression& node, const ActivationPtr& activation) {
  Dict dict;
  for (size_t i = 0; i < node.children.size(); i += 2) {
    Value key = evaluate(*node.children[i], activation);
    Value value = evaluate(*node.children[i + 1], activation);
    position_ = node.position;
    dict.set(std::move(key), std::move(value));
  }
  return make_dict(std::move(dict));
}

Value Interpreter::evaluate_slice(const Expression& node, const ActivationPtr& activation) {
  const Value object = evaluate(*node.children[0], activation);
  Value bounds[3] = {Value::none(), Value::none(), Value::none()};
  for (size_t i = 0; i < 3; ++i)
    if (node.children[i + 1]) bounds[i] = evaluate(*node.children[i + 1], activation);
  position_ = node.position;
  return slice(object, bounds[0], bounds[1], bounds[2]);
}

Arguments Interpreter::evaluate_arguments(const CallSite& site, const ActivationPtr& activation) {
  Arguments arguments;
  for (const ExpressionPtr& node : site.positional) arguments.positional.push_back(evaluate(*node, activation));
  if (site.star)
    for (Value& value : to_vector(evaluate(*site.star, activation))) arguments.positional.push_back(std::move(value));
  for (const auto& [name, node] : site.keywords) arguments.keywords.emplace_back(name, evaluate(*node, activation));
  if (!site.double_star) return arguments;
  const Value more = evaluate(*site.double_star, activation);
  require_defined(more);
  if (!more.is(Kind::kDict)) raise(fmt::format("argument after ** must be a mapping, not {}", type_name(more)));
  for (const auto& [key, value] : more.as<DictObject>().dict.entries()) {
    if (!key.is_string()) raise("keywords must be strings");
    if (arguments.keyword(key.text()) != nullptr)
      raise(fmt::format("got multiple values for keyword argument '{}'", key.text()));
    spend_steps(1 + arguments.keywords.size() / 8);
    arguments.keywords.emplace_back(key.text(), value);
  }
  return arguments;
}

Value Interpreter::evaluate_call(const Expression& node, const ActivationPtr& activation, const Value* caller) {
  const Value callee = evaluate(*node.children[0], activation);
  Arguments arguments = evaluate_arguments(*node.arguments, activation);
  position_ = node.position;
  if (caller != nullptr) arguments.keywords.emplace_back("caller", *caller);
  return call(callee, std::move(arguments));
}

Value Interpreter::evaluate_filter(const Expression& node, const ActivationPtr& activation, const Value* block_text) {
  const Expression* inner = node.children[0].get();
  Value input;
  if (inner == nullptr) {
    input = *block_text;
  } else if (block_text != nullptr && inner->kind == Expression::Kind::kFilter) {
    const Level level(this);
    input = evaluate_filter(*inner, activation, block_text);
  } else {
    input = evaluate(*inner, activation);
  }
  const Arguments arguments = evaluate_arguments(*node.arguments, activation);
  position_ = node.position;
  if (!has_filter(node.name)) raise(fmt::format("No filter named {} found.", repr_of_text(node.name)));
  return filter(node.name, input, arguments);
}

Value Interpreter::evaluate_test(const Expression& node, const ActivationPtr& activation) {
  const Value input = evaluate(*node.children[0], activation);
  const Arguments arguments = evaluate_arguments(*node.arguments, activation);
  position_ = node.position;
  if (!has_test(node.name)) raise(fmt::format("No test named {} found.", repr_of_text(node.name)));
  return Value::boolean(test(node.name, input, arguments));
}

void Interpreter::require_namespaces(const Expression& target, const ActivationPtr& activation) {
  if (target.kind == Expression::Kind::kNamespaceRef && !slot(target.slot, activation).is(Kind::kNamespace))
    raise("cannot assign attribute on non-namespace object");
  if (target.kind == Expression::Kind::kTuple)
    for (const ExpressionPtr& child : target.children) require_namespaces(*child, activation);
}

void Interpreter::assign(const Expression& target, Value value, const ActivationPtr& activation) {
  switch (target.kind) {
    case Expression::Kind::kName:
      slot(target.slot, activation) = std::move(value);
      return;
    case Expression::Kind::kNamespaceRef: {
      const Value space = slot(target.slot, activation);
      if (!space.is(Kind::kNamespace)) raise("cannot assign attribute on non-namespace object");
      space.as<NamespaceObject>().attributes.set(Value::string(target.attribute), std::move(value));
      return;
    }
    default:
      assign_tuple(target, value, activation);
  }
}

void Interpreter::assign_tuple(const Expression& target, const Value& value, const ActivationPtr& activation) {
  if (!is_iterable(value)) raise(fmt::format("cannot unpack non-iterable {} object", type_name(value)));
  const size_t wanted = target.children.size();
  const auto iterator = iterate(value);
  std::vector<Value> items;
  for (Value item; items.size() <= wanted && iterator->next(&item);) items.push_back(std::move(item));
  if (items.size() > wanted) raise(fmt::format("too many values to unpack (expected {})", wanted));
  if (items.size() < wanted)
    raise(fmt::format("not enough values to unpack (expected {}, got {})", wanted, items.size()));
  for (size_t i = 0; i < wanted; ++i) assign(*target.children[i], std::move(items[i]), activation);
}

}  // namespace octavo::jinja
