// object[start:stop:step], as Python cuts.
#include "text/jinja/slices.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

struct Cut {
  int64_t start = 0, step = 1;
  size_t count = 0;
};

// Python's slice.indices.
Cut resolve(const Value& start, const Value& stop, const Value& step, size_t size) {
  for (const Value* bound : {&start, &stop, &step})
    if (!bound->is_none() && !bound->is_integer())
      raise("slice indices must be integers or None or have an __index__ method");
  Cut cut;
  if (!step.is_none()) cut.step = step.as_integer();
  if (cut.step == 0) raise("slice step cannot be zero");
  const auto length = static_cast<int64_t>(size);
  const int64_t lowest = cut.step < 0 ? -1 : 0, highest = cut.step < 0 ? length - 1 : length;
  const auto clamp = [&](const Value& bound, int64_t otherwise) {
    if (bound.is_none()) return otherwise;
    int64_t index = bound.as_integer();
    if (index < 0) index = index < -length ? lowest : std::max(index + length, lowest);
    return std::min(index, highest);
  };
  cut.start = clamp(start, cut.step < 0 ? highest : lowest);
  const int64_t end = clamp(stop, cut.step < 0 ? lowest : highest);
  const RangeObject range(cut.start, end, cut.step);
  cut.count = range.size;
  return cut;
}

Value cut_text(const Value& value, const Cut& cut) {
  const std::string& text = value.text();
  spend_steps(text.size() / 64 + 1);
  if (cut.count == 0) return Value::string("", value.is_markup());
  if (cut.step == 1) {
    const auto begin = byte_offset(text, static_cast<size_t>(cut.start));
    const size_t length = byte_offset(std::string_view(text).substr(begin), cut.count);
    return Value::string(text.substr(begin, length), value.is_markup());
  }
  std::vector<size_t> offsets;  // of every code point
  for (size_t i = 0; i < text.size(); next_code_point(text, &i)) offsets.push_back(i);
  offsets.push_back(text.size());
  std::string out;
  for (size_t k = 0; k < cut.count; ++k) {
    const auto at = static_cast<size_t>(cut.start + static_cast<int64_t>(k) * cut.step);
    out.append(text, offsets[at], offsets[at + 1] - offsets[at]);
  }
  return Value::string(std::move(out), value.is_markup());
}

}  // namespace

Value slice(const Value& object, const Value& start, const Value& stop, const Value& step) {
  require_defined(object);
  switch (object.kind()) {
    case Kind::kString:
      return cut_text(object, resolve(start, stop, step, object.text_length()));
    case Kind::kList:
    case Kind::kTuple: {
      const auto& source = object.items();
      const Cut cut = resolve(start, stop, step, source.size());
      spend_steps(cut.count);
      std::vector<Value> items;
      items.reserve(cut.count);
      for (size_t k = 0; k < cut.count; ++k)
        items.push_back(source[static_cast<size_t>(cut.start + static_cast<int64_t>(k) * cut.step)]);
      return object.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
    }
    case Kind::kRange: {
      const auto& range = object.as<RangeObject>();
      const Cut cut = resolve(start, stop, step, range.size);
      const int64_t by = range.step * cut.step, first = range.start + cut.start * range.step;
      return Value::object(Kind::kRange,
                           std::make_shared<RangeObject>(first, first + static_cast<int64_t>(cut.count) * by, by));
    }
    case Kind::kDict:
      raise("unhashable type: 'slice'");
    default:
      raise(fmt::format("'{}' object is not subscriptable", type_name(object)));
  }
}

}  // namespace octavo::jinja
