// Making and walking values.
#include "text/jinja/value.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/loop.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

int checked_nesting(int levels) {
  if (levels > kMaxNesting)
    throw Failure{.what = "values are nested too deeply", .expected = fmt::format("at most {} levels", kMaxNesting)};
  return levels;
}

int nesting_of(const std::vector<Value>& items) {
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.nesting());
  return checked_nesting(deepest + 1);
}

int nesting_of(const Dict& dict) {
  int deepest = 0;
  for (const auto& [key, value] : dict.entries()) deepest = std::max({deepest, key.nesting(), value.nesting()});
  return checked_nesting(deepest + 1);
}

// Walks anything whose elements can be reached by index.
class IndexIterator : public IteratorObject {
 public:
  IndexIterator(Value source, size_t size)
      : IteratorObject("iterator", checked_nesting(source.nesting() + 1)), source_(std::move(source)), size_(size) {}
  bool next(Value* item) override {
    if (index_ >= size_) return false;
    *item = element(index_++);
    return true;
  }

 private:
  Value element(size_t i) const {
    switch (source_.kind()) {
      case Kind::kRange:
        return source_.as<RangeObject>().at(i);
      case Kind::kDict:
        return source_.as<DictObject>().dict.entries()[i].first;
      case Kind::kDictView: {
        const auto& view = source_.as<DictViewObject>();
        const auto& [key, value] = view.entries().entries()[i];
        if (view.part == DictViewObject::Part::kKeys) return key;
        if (view.part == DictViewObject::Part::kValues) return value;
        return Value::tuple({key, value});
      }
      default:
        return source_.items()[i];
    }
  }
  Value source_;
  size_t size_, index_ = 0;
};

class StringIterator : public IteratorObject {
 public:
  explicit StringIterator(Value source) : IteratorObject("str_iterator", 2), source_(std::move(source)) {}
  bool next(Value* item) override {
    const std::string& text = source_.text();
    if (position_ >= text.size()) return false;
    const size_t begin = position_;
    next_code_point(text, &position_);
    *item = Value::string(text.substr(begin, position_ - begin));
    return true;
  }

 private:
  Value source_;
  size_t position_ = 0;
};

}  // namespace

Value Value::undefined(std::string message, bool unsafe) {
  return Value(Kind::kUndefined, std::make_shared<UndefinedObject>(std::move(message), unsafe));
}
Value Value::boolean(bool value) {
  Value result(Kind::kBool);
  result.integer_ = value;
  return result;
}
Value Value::integer(int64_t value) {
  Value result(Kind::kInt);
  result.integer_ = value;
  return result;
}
Value Value::big_integer(std::string digits) {
  return Value(Kind::kBigInt, std::make_shared<StringObject>(std::move(digits), false));
}
Value Value::real(double value) {
  Value result(Kind::kFloat);
  result.real_ = value;
  return result;
}
Value Value::string(std::string text, bool markup) {
  return Value(Kind::kString, std::make_shared<StringObject>(std::move(text), markup));
}
Value Value::list(std::vector<Value> items) {
  return Value(Kind::kList, std::make_shared<SequenceObject>(std::move(items)));
}
Value Value::tuple(std::vector<Value> items) {
  return Value(Kind::kTuple, std::make_shared<SequenceObject>(std::move(items)));
}

bool Value::is_markup() const {
  return kind_ == Kind::kString && as<StringObject>().markup;
}
const std::string& Value::text() const {
  return as<StringObject>().text;
}
size_t Value::text_length() const {
  return as<StringObject>().length;
}
const std::vector<Value>& Value::items() const {
  return as<SequenceObject>().items;
}

StringObject::StringObject(std::string characters, bool is_markup)
    : Object(sizeof(*this) + characters.size()),
      text(std::move(characters)),
      length(count_code_points(text)),
      markup(is_markup) {
  check_text_size(text.size());
}

SequenceObject::SequenceObject(std::vector<Value> elements)
    : Object(sizeof(*this) + elements.size() * sizeof(Value), nesting_of(elements)), items(std::move(elements)) {}

DictObject::DictObject(Dict elements)
    : Object(sizeof(*this) + elements.size() * (2 * sizeof(Value) + 48), nesting_of(elements)),
      dict(std::move(elements)) {}

Value make_dict(Dict dict) {
  return Value::object(Kind::kDict, std::make_shared<DictObject>(std::move(dict)));
}

RangeObject::RangeObject(int64_t first, int64_t last, int64_t by)
    : Object(sizeof(*this)), start(first), stop(last), step(by), size(0) {
  // In unsigned arithmetic, which cannot overflow.
  const auto distance = [](int64_t low, int64_t high) {
    return static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  };
  if (step > 0 && start < stop) size = (distance(start, stop) - 1) / static_cast<uint64_t>(step) + 1;
  if (step < 0 && start > stop) size = (distance(stop, start) - 1) / (uint64_t{0} - static_cast<uint64_t>(step)) + 1;
}

size_t Dict::position(const Value& key, size_t hash) const {
  const auto [begin, end] = index_.equal_range(hash);
  for (auto it = begin; it != end; ++it)
    if (equal(entries_[it->second].first, key)) return it->second;
  return entries_.size();
}

const Value* Dict::find(const Value& key) const {
  const size_t at = position(key, hash_of(key));
  return at < entries_.size() ? &entries_[at].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  const auto [begin, end] = index_.equal_range(hash_of_text(key));
  for (auto it = begin; it != end; ++it) {
    const auto& [entry_key, value] = entries_[it->second];
    if (entry_key.is_string() && entry_key.text() == key) return &value;
  }
  return nullptr;
}

bool Dict::set(Value key, Value value) {
  const size_t hash = hash_of(key);
  const size_t at = position(key, hash);
  if (at < entries_.size()) {
    entries_[at].second = std::move(value);
    return false;
  }
  index_.emplace(hash, entries_.size());
  entries_.emplace_back(std::move(key), std::move(value));
  return true;
}

void Dict::clear() {
  entries_.clear();
  index_.clear();
}

const Value* Arguments::keyword(std::string_view name) const {
  for (const auto& [key, value] : keywords)
    if (key == name) return &value;
  return nullptr;
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.is_markup() ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kDictView:
      switch (value.as<DictViewObject>().part) {
        case DictViewObject::Part::kKeys:
          return "dict_keys";
        case DictViewObject::Part::kValues:
          return "dict_values";
        default:
          return "dict_items";
      }
    case Kind::kRange:
      return "range";
    case Kind::kIterator:
      return value.as<IteratorObject>().type_name;
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kMacro:
      return "Macro";
    case Kind::kFunction:
      return "builtin_function_or_method";
    case Kind::kCycler:
      return "Cycler";
  }
  return "object";
}

std::string object_type_name(const Value& value) {
  const std::string name = type_name(value);
  switch (value.kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kNamespace:
    case Kind::kCycler:
      return "jinja2.utils." + name + " object";
    case Kind::kLoop:
    case Kind::kMacro:
    case Kind::kUndefined:
      return "jinja2.runtime." + name + " object";
    case Kind::kString:
      return value.is_markup() ? "markupsafe.Markup object" : "str object";
    default:
      return name + " object";
  }
}

bool has_length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kRange:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

size_t length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return value.text_length();
    case Kind::kList:
    case Kind::kTuple:
      return value.items().size();
    case Kind::kDict:
      return value.as<DictObject>().dict.size();
    case Kind::kDictView:
      return value.as<DictViewObject>().entries().size();
    case Kind::kRange:
      return value.as<RangeObject>().size;
    case Kind::kLoop:
      return value.as<LoopObject>().length();
    default:
      raise(fmt::format("object of type '{}' has no len()", type_name(value)));
  }
}

bool is_iterable(const Value& value) {
  return has_length(value) || value.is(Kind::kIterator);
}

std::shared_ptr<IteratorObject> iterate(const Value& value) {
  switch (value.kind()) {
    case Kind::kIterator:
      return std::static_pointer_cast<IteratorObject>(value.pointer());
    case Kind::kString:
      return std::make_shared<StringIterator>(value);
    case Kind::kUndefined:
      return std::make_shared<IndexIterator>(value, 0);
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kRange:
      return std::make_shared<IndexIterator>(value, length_of(value));
    default:
      raise(fmt::format("'{}' object is not iterable", type_name(value)));
  }
}

std::vector<Value> to_vector(const Value& value) {
  if (value.is_sequence()) {
    spend_steps(value.items().size() / 8);
    return value.items();
  }
  std::vector<Value> items;
  Charge charge(0);  // an iterator may be long: what it yields is counted while it grows
  const auto iterator = iterate(value);
  for (Value item; iterator->next(&item);) {
    spend_steps(1);
    charge.grow(sizeof(Value));
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace octavo::jinja
