// Methods of lists, tuples, dictionaries and ranges. Those that would change them do not exist here.
#include <fmt/format.h>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"

namespace octavo::jinja {
namespace {

template <DictViewObject::Part part>
Value view(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("view", arguments, {});
  return Value::object(Kind::kDictView, std::make_shared<DictViewObject>(self, part));
}

Value get(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("get", arguments, {"", ""}, 1);
  if (const Value* found = self.as<DictObject>().dict.find(parameters[0])) return *found;
  return parameters.has(1) ? parameters[1] : Value::none();
}

Value copy(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("copy", arguments, {});
  return self;
}

Value count(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("count", arguments, {""}, 1);
  int64_t total = 0;
  const auto items = iterate(self);
  for (Value item; items->next(&item);) total += equal(item, parameters[0]);
  return Value::integer(total);
}

Value index(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("index", arguments, {"", "", ""}, 1);
  const std::vector<Value> items = to_vector(self);
  const auto size = static_cast<int64_t>(items.size());
  const auto bound = [size](int64_t at) { return std::max<int64_t>(at < 0 ? at + size : at, 0); };
  const int64_t begin = bound(parameters.integer(1, 0)), end = std::min(bound(parameters.integer(2, size)), size);
  for (int64_t i = begin; i < end; ++i)
    if (equal(items[static_cast<size_t>(i)], parameters[0])) return Value::integer(i);
  raise(fmt::format("{} is not in list", repr(parameters[0])));
}

constexpr Builtin kDictMethods[] = {
    {"items", view<DictViewObject::Part::kItems>},
    {"keys", view<DictViewObject::Part::kKeys>},
    {"values", view<DictViewObject::Part::kValues>},
    {"get", get},
    {"copy", copy},
};
constexpr Builtin kListMethods[] = {{"index", index}, {"count", count}, {"copy", copy}};
constexpr Builtin kTupleMethods[] = {{"index", index}, {"count", count}};

}  // namespace

std::span<const Builtin> container_methods(Kind kind) {
  switch (kind) {
    case Kind::kDict:
      return kDictMethods;
    case Kind::kList:
      return kListMethods;
    case Kind::kTuple:
    case Kind::kRange:
      return kTupleMethods;
    default:
      return {};
  }
}

}  // namespace octavo::jinja
