// Filters over sequences and dictionaries: length, first, join, sort, groupby, items, ...
#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/slices.h"
#include "text/jinja/unicode.h"

namespace octavo::jinja {
namespace {

Value ignore_case(Value value) {
  return value.is_string() ? Value::string(to_lower(value.text()), value.is_markup()) : std::move(value);
}

// Items made beforehand, handed out once: what jinja2 returns as a generator or a reversed iterator.
class PreparedItems : public IteratorObject {
 public:
  PreparedItems(const char* python_type, Value list)
      : IteratorObject(python_type, list.nesting() + 1), list_(std::move(list)) {}
  bool next(Value* item) override {
    if (index_ >= list_.items().size()) return false;
    *item = list_.items()[index_++];
    return true;
  }

 private:
  Value list_;
  size_t index_ = 0;
};

Value generator(std::vector<Value> items, const char* python_type = "generator") {
  return Value::object(Kind::kIterator, std::make_shared<PreparedItems>(python_type, Value::list(std::move(items))));
}

Value length(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("length", arguments, {});
  return Value::integer(static_cast<int64_t>(length_of(self)));
}

Value first(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("first", arguments, {});
  Value item;
  return iterate(self)->next(&item) ? item : Value::undefined("No first item, sequence was empty.");
}

Value last(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("last", arguments, {});
  const bool reversible = has_length(self) && !self.is(Kind::kLoop);
  if (!reversible) raise(fmt::format("'{}' object is not reversible", type_name(self)));
  if (length_of(self) == 0) return Value::undefined("No last item, sequence was empty.");
  if (self.is_sequence()) return self.items().back();
  if (self.is_string()) return slice(Value::string(self.text()), Value::integer(-1), Value::none(), Value::none());
  return to_vector(self).back();
}

Value list(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("list", arguments, {});
  return Value::list(to_vector(self));
}

Value join(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters("join", arguments, {"d", "attribute"});
  const AttributePath path(parameters.get(1));
  const std::string separator = parameters.has(0) ? to_text(parameters[0]) : "";
  std::string out;
  const auto items = iterate(self);
  bool is_first = true;
  for (Value item; items->next(&item);) {
    spend_steps(1);
    if (!is_first) out += separator;
    is_first = false;
    append_text(&out, path.of(interpreter, item));
    check_text_size(out.size());
  }
  return Value::string(std::move(out));
}

Value reverse(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("reverse", arguments, {});
  if (self.is_string()) return slice(self, Value::none(), Value::none(), Value::integer(-1));
  if (!is_iterable(self) || self.is(Kind::kLoop)) raise("argument must be iterable");
  std::vector<Value> items = to_vector(self);
  std::reverse(items.begin(), items.end());
  if (self.is(Kind::kIterator)) return Value::list(std::move(items));
  return generator(std::move(items), self.is(Kind::kList) ? "list_reverseiterator" : "reversed");
}

struct Keyed {
  Value key, item;
};

// Python's sorted(): stable, also in reverse.
std::vector<Value> sort_by_key(std::vector<Keyed> entries, bool reverse) {
  const Charge charge(entries.size() * 2 * sizeof(Keyed));
  std::stable_sort(entries.begin(), entries.end(), [reverse](const Keyed& a, const Keyed& b) {
    return reverse ? compare(Operator::kLess, b.key, a.key) : compare(Operator::kLess, a.key, b.key);
  });
  std::vector<Value> items;
  for (Keyed& entry : entries) items.push_back(std::move(entry.item));
  return items;
}

std::vector<Keyed> keyed(const Value& source, const std::function<Value(const Value&)>& key_of) {
  std::vector<Keyed> entries;
  for (Value& item : to_vector(source)) {
    spend_steps(1);
    Value key = key_of(item);
    entries.push_back({std::move(key), std::move(item)});
  }
  return entries;
}

Value sort(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = parameters.boolean(1, false);
  std::vector<AttributePath> paths;  // "a,b": by a, then by b
  if (parameters.has(2) && parameters[2].is_string()) {
    const std::string& names = parameters[2].text();
    for (size_t begin = 0; begin <= names.size();) {
      const size_t end = std::min(names.find(',', begin), names.size());
      const Value name = Value::string(names.substr(begin, end - begin));
      paths.emplace_back(&name);
      begin = end + 1;
    }
  } else {
    paths.emplace_back(parameters.get(2));
  }
  const auto key_of = [&](const Value& item) {
    std::vector<Value> keys;
    for (const AttributePath& path : paths) {
      Value key = path.of(interpreter, item);
      keys.push_back(case_sensitive ? std::move(key) : ignore_case(std::move(key)));
    }
    return Value::list(std::move(keys));  // lists look at equality first: undefined keys are equal
  };
  return Value::list(sort_by_key(keyed(self, key_of), parameters.boolean(0, false)));
}

Value unique(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters("unique", arguments, {"case_sensitive", "attribute"});
  const AttributePath path(parameters.get(1));
  const bool case_sensitive = parameters.boolean(0, false);
  Dict seen;
  std::vector<Value> items;
  for (const Value& item : to_vector(self)) {
    spend_steps(1);
    Value key = path.of(interpreter, item);
    if (!case_sensitive) key = ignore_case(std::move(key));
    if (seen.set(std::move(key), Value::none())) items.push_back(item);
  }
  return generator(std::move(items));
}

Value batch(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("batch", arguments, {"linecount", "fill_with"}, 1);
  const int64_t size = parameters.integer(0, 1);
  std::vector<Value> rows, row;
  for (Value& item : to_vector(self)) {
    if (static_cast<int64_t>(row.size()) == size) rows.push_back(Value::list(std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (parameters.given(1) && static_cast<int64_t>(row.size()) < size) {
      spend_steps(static_cast<size_t>(size));
      check_text_size(static_cast<size_t>(size), sizeof(Value));
      row.resize(static_cast<size_t>(size), parameters[1]);
    }
    rows.push_back(Value::list(std::move(row)));
  }
  return generator(std::move(rows));
}

Value slice_filter(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("slice", arguments, {"slices", "fill_with"}, 1);
  const int64_t count = parameters.integer(0, 1);
  if (count == 0) raise("integer division or modulo by zero");
  const std::vector<Value> items = to_vector(self);
  std::vector<Value> slices;
  if (count > 0) {
    const auto total = static_cast<size_t>(count);
    const size_t per_slice = items.size() / total, with_extra = items.size() % total;
    size_t begin = 0;
    for (size_t i = 0; i < total; ++i) {
      spend_steps(1);
      const size_t end = begin + per_slice + (i < with_extra ? 1 : 0);
      std::vector<Value> part(items.begin() + static_cast<std::ptrdiff_t>(begin),
                              items.begin() + static_cast<std::ptrdiff_t>(end));
      if (parameters.given(1) && i >= with_extra) part.push_back(parameters[1]);
      slices.push_back(Value::list(std::move(part)));
      begin = end;
    }
  }
  return generator(std::move(slices));
}

Value group_by(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(parameters.get(0));
  const bool case_sensitive = parameters.boolean(2, false);
  const auto raw_key = [&](const Value& item) { return path.of(interpreter, item, parameters.get(1)); };
  const auto key_of = [&](const Value& item) {
    Value key = raw_key(item);
    return case_sensitive ? key : ignore_case(std::move(key));
  };
  std::vector<Value> groups, members;
  Value group_key;
  const auto close = [&] {
    if (members.empty()) return;
    Value shown = raw_key(members[0]);
    groups.push_back(Value::tuple({std::move(shown), Value::list(std::exchange(members, {}))}));
  };
  for (Value& item : sort_by_key(keyed(self, key_of), false)) {
    Value key = key_of(item);
    if (!members.empty() && !equal(key, group_key)) close();
    group_key = std::move(key);
    members.push_back(std::move(item));
  }
  close();
  return Value::list(std::move(groups));
}

Value dict_sort(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const bool case_sensitive = parameters.boolean(0, false);
  const std::string by = parameters.string(1, "key");
  if (by != "key" && by != "value") raise("You can only sort by either \"key\" or \"value\"");
  require_defined(self);
  if (!self.is(Kind::kDict)) raise(fmt::format("'{}' object has no attribute 'items'", type_name(self)));
  std::vector<Keyed> entries;
  for (const auto& [key, value] : self.as<DictObject>().dict.entries()) {
    const Value& sorted_by = by == "key" ? key : value;
    entries.push_back({case_sensitive ? sorted_by : ignore_case(sorted_by), Value::tuple({key, value})});
  }
  return Value::list(sort_by_key(std::move(entries), parameters.boolean(2, false)));
}

Value items(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("items", arguments, {});
  std::vector<Value> pairs;
  if (self.is_undefined()) return generator({});
  if (!self.is(Kind::kDict)) raise("Can only get item pairs from a mapping.");
  for (const auto& [key, value] : self.as<DictObject>().dict.entries()) pairs.push_back(Value::tuple({key, value}));
  return generator(std::move(pairs));
}

Value attr(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters("attr", arguments, {"name"}, 1);
  const std::string name = parameters.string(0, "");
  if (!self.is(Kind::kDict)) return interpreter.attribute(self, name);
  // Attributes only, no items: an empty dictionary has the same ones.
  const Value value = interpreter.attribute(make_dict({}), name);
  return value.is(Kind::kFunction) ? interpreter.attribute(self, name) : value;
}

constexpr Builtin kSequenceFilters[] = {
    {"length", length},      {"count", length},     {"first", first},        {"last", last},     {"list", list},
    {"join", join},          {"reverse", reverse},  {"sort", sort},          {"unique", unique}, {"batch", batch},
    {"slice", slice_filter}, {"groupby", group_by}, {"dictsort", dict_sort}, {"items", items},   {"attr", attr},
};

}  // namespace

std::span<const Builtin> sequence_filters() {
  return kSequenceFilters;
}

}  // namespace octavo::jinja
