// A template's values, with Python's kinds. A Value is small and cheap to copy; what it points to does not change after
// it is made (iterators, namespaces and loop variables excepted).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/budget.h"

namespace octavo::jinja {

class Interpreter;

enum class Kind : uint8_t {
  kMissing,  // a variable that has no value yet; never seen by a template
  kUndefined,
  kNone,
  kBool,
  kInt,
  kBigInt,  // beyond 64 bits: only passed through, as its decimal digits
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kDictView,  // keys(), values(), items()
  kRange,
  kIterator,  // what filters such as map return: can be walked once
  kNamespace,
  kLoop,
  kMacro,
  kFunction,
  kCycler,
};

// Base of what Values point to. `nesting` is one more than that of the deepest element: it is limited, so that
// recursion over values (and their destruction) is.
struct Object {
  explicit Object(size_t bytes, int nesting_levels = 1) : charge(bytes), nesting(nesting_levels) {}
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  Charge charge;
  int nesting;
};

class Value {
 public:
  Value() = default;
  static Value undefined(std::string message, bool unsafe = false);
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value big_integer(std::string digits);
  static Value real(double value);
  static Value string(std::string text, bool markup = false);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value object(Kind kind, std::shared_ptr<Object> object) { return Value(kind, std::move(object)); }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_missing() const { return kind_ == Kind::kMissing; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }  // Python's bool is an int
  bool is_number() const { return is_integer() || kind_ == Kind::kFloat; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_markup() const;  // text that `safe` or `escape` made

  int64_t as_integer() const { return integer_; }  // kInt, kBool
  double as_real() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(integer_); }
  const std::string& text() const;          // kString, kBigInt
  size_t text_length() const;               // code points of a kString
  const std::vector<Value>& items() const;  // kList, kTuple

  template <class T>
  T& as() const {
    return static_cast<T&>(*object_);
  }
  const std::shared_ptr<Object>& pointer() const { return object_; }
  int nesting() const { return object_ ? object_->nesting : 0; }

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind_ = Kind::kMissing;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<Object> object_;
};

struct UndefinedObject : Object {
  UndefinedObject(std::string text, bool is_unsafe)
      : Object(sizeof(*this) + text.size()), message(std::move(text)), unsafe(is_unsafe) {}
  std::string message;  // what jinja2 says when it is used
  bool unsafe;          // an attribute that the sandbox refuses
};

struct StringObject : Object {
  StringObject(std::string characters, bool is_markup);
  std::string text;
  size_t length;  // code points
  bool markup;
};

struct SequenceObject : Object {
  explicit SequenceObject(std::vector<Value> elements);
  std::vector<Value> items;
};

// Keys in the order of their first insertion.
class Dict {
 public:
  const Value* find(const Value& key) const;  // throws on a key that cannot be hashed
  const Value* find(std::string_view key) const;
  bool set(Value key, Value value);  // true when the key is new
  void reserve(size_t count) { entries_.reserve(count); }
  size_t size() const { return entries_.size(); }
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  void clear();

 private:
  size_t position(const Value& key, size_t hash) const;
  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_multimap<size_t, size_t> index_;  // hash -> entry
};

struct DictObject : Object {
  explicit DictObject(Dict elements);
  Dict dict;
};
Value make_dict(Dict dict);

struct DictViewObject : Object {
  enum class Part { kKeys, kValues, kItems };
  DictViewObject(Value of, Part which) : Object(sizeof(*this), of.nesting() + 1), dict(std::move(of)), part(which) {}
  const Dict& entries() const { return dict.as<DictObject>().dict; }
  Value dict;
  Part part;
};

struct RangeObject : Object {
  RangeObject(int64_t first, int64_t last, int64_t by);
  Value at(size_t index) const { return Value::integer(start + static_cast<int64_t>(index) * step); }
  int64_t start, stop, step;
  size_t size;
};

struct NamespaceObject : Object {
  NamespaceObject() : Object(sizeof(*this)) {}
  Dict attributes;
};

struct IteratorObject : Object {
  IteratorObject(const char* python_type, int levels) : Object(sizeof(*this) + 64, levels), type_name(python_type) {}
  virtual bool next(Value* item) = 0;  // false: no more
  const char* type_name;
};

struct CyclerObject : Object {
  explicit CyclerObject(Value values) : Object(sizeof(*this), values.nesting() + 1), items(std::move(values)) {}
  Value items;  // a tuple
  size_t position = 0;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keywords;
  const Value* keyword(std::string_view name) const;
};

using NativeFunction = Value (*)(Interpreter& interpreter, const Value& self, const Arguments& arguments);
struct FunctionObject : Object {
  FunctionObject(std::string_view function_name, NativeFunction native, Value bound)
      : Object(sizeof(*this), bound.nesting() + 1), name(function_name), function(native), self(std::move(bound)) {}
  std::string name;
  NativeFunction function;
  Value self;
};

// The deepest allowed nesting of values; making a deeper one throws.
inline constexpr int kMaxNesting = 200;

const char* type_name(const Value& value);  // "str", "NoneType"
std::string object_type_name(
    const Value& value);  // "str object", "jinja2.utils.Namespace object", as in jinja2's messages

// Walks lists, tuples, strings, dictionaries (keys), views, ranges and iterators; throws on what cannot be walked.
bool is_iterable(const Value& value);
std::shared_ptr<IteratorObject> iterate(const Value& value);
std::vector<Value> to_vector(const Value& value);
// len(value); throws for what has none.
size_t length_of(const Value& value);
bool has_length(const Value& value);

}  // namespace octavo::jinja
