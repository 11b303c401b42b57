// map, select, reject, selectattr, rejectattr: generators that ask for an item only when they are asked for one.
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"

namespace octavo::jinja {
namespace {

int nesting_of(const std::shared_ptr<IteratorObject>& source, const Arguments& arguments) {
  int levels = source->nesting;
  for (const Value& value : arguments.positional) levels = std::max(levels, value.nesting());
  for (const auto& [name, value] : arguments.keywords) levels = std::max(levels, value.nesting());
  if (levels >= kMaxNesting) raise("values are nested too deeply");
  return levels + 1;
}

// What an item becomes under map.
class MappedItems : public IteratorObject {
 public:
  MappedItems(Interpreter* interpreter, std::shared_ptr<IteratorObject> source, const Arguments& arguments)
      : IteratorObject("generator", nesting_of(source, arguments)),
        interpreter_(interpreter),
        source_(std::move(source)),
        arguments_(arguments),
        by_attribute_(arguments.positional.empty() && arguments.keyword("attribute") != nullptr),
        path_(arguments.keyword("attribute")) {}

  bool next(Value* item) override {
    if (!checked_) check();
    spend_steps(1);
    if (!source_->next(item)) return false;
    *item = by_attribute_ ? path_.of(*interpreter_, *item, arguments_.keyword("default"))
                          : interpreter_->filter(name_, *item, rest_);
    return true;
  }

 private:
  void check() {
    checked_ = true;
    if (by_attribute_) {
      for (const auto& [name, value] : arguments_.keywords)
        if (name != "attribute" && name != "default") raise(fmt::format("Unexpected keyword argument '{}'", name));
      return;
    }
    if (arguments_.positional.empty()) raise("map requires a filter argument");
    if (!arguments_.positional[0].is_string()) raise("map requires the name of a filter");
    name_ = arguments_.positional[0].text();
    rest_ = arguments_;
    rest_.positional.erase(rest_.positional.begin());
  }

  Interpreter* interpreter_;
  std::shared_ptr<IteratorObject> source_;
  Arguments arguments_, rest_;
  bool by_attribute_, checked_ = false;
  AttributePath path_;
  std::string name_;
};

// The items, or those whose attribute, that pass a test (or do not).
class SelectedItems : public IteratorObject {
 public:
  SelectedItems(Interpreter* interpreter, std::shared_ptr<IteratorObject> source, const Arguments& arguments,
                bool wanted, bool by_attribute)
      : IteratorObject("generator", nesting_of(source, arguments)),
        interpreter_(interpreter),
        source_(std::move(source)),
        arguments_(arguments),
        wanted_(wanted),
        path_(by_attribute && !arguments.positional.empty() ? arguments.positional.data() : nullptr) {
    if (!by_attribute) return;
    missing_attribute_ = arguments.positional.empty();
    if (!missing_attribute_) arguments_.positional.erase(arguments_.positional.begin());
  }

  bool next(Value* item) override {
    if (missing_attribute_) raise("Missing parameter for attribute name");
    if (!checked_ && !arguments_.positional.empty()) {
      if (!arguments_.positional[0].is_string()) raise("select and reject require the name of a test");
      name_ = arguments_.positional[0].text();
      arguments_.positional.erase(arguments_.positional.begin());
      has_test_ = true;
    }
    checked_ = true;
    while (source_->next(item)) {
      spend_steps(1);
      const Value value = path_.of(*interpreter_, *item);
      if ((has_test_ ? interpreter_->test(name_, value, arguments_) : truthy(value)) == wanted_) return true;
    }
    return false;
  }

 private:
  Interpreter* interpreter_;
  std::shared_ptr<IteratorObject> source_;
  Arguments arguments_;
  bool wanted_, checked_ = false, has_test_ = false, missing_attribute_ = false;
  AttributePath path_;
  std::string name_;
};

// What is false has no items, and jinja2 does not look at the arguments then.
Value no_items() {
  return Value::object(Kind::kIterator, iterate(Value::list({})));
}

Value map(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  if (!truthy(self)) return no_items();
  return Value::object(Kind::kIterator, std::make_shared<MappedItems>(&interpreter, iterate(self), arguments));
}

template <bool wanted, bool by_attribute>
Value select(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  if (!truthy(self)) return no_items();
  return Value::object(Kind::kIterator,
                       std::make_shared<SelectedItems>(&interpreter, iterate(self), arguments, wanted, by_attribute));
}

constexpr Builtin kSelectionFilters[] = {
    {"map", map},
    {"select", select<true, false>},
    {"reject", select<false, false>},
    {"selectattr", select<true, true>},
    {"rejectattr", select<false, true>},
};

}  // namespace

std::span<const Builtin> selection_filters() {
  return kSelectionFilters;
}

}  // namespace octavo::jinja
