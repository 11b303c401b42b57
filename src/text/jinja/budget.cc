// What one rendering may use.
#include "text/jinja/budget.h"

#include <fmt/format.h>

#include <utility>

namespace octavo::jinja {
namespace {
thread_local Budget* current_budget = nullptr;
}  // namespace

void raise(std::string what) {
  throw Failure{.what = std::move(what)};
}

Budget::Budget(Limits limits) : limits_(limits), outer_(std::exchange(current_budget, this)) {}
Budget::~Budget() {
  current_budget = outer_;
}
Budget* Budget::current() {
  return current_budget;
}

void Budget::step(size_t count) {
  if (count > limits_.steps - steps_)
    throw Failure{.what = "the template takes too many steps",
                  .expected = fmt::format("at most {} steps: is there an endless loop?", limits_.steps)};
  steps_ += count;
}

void Budget::take(size_t bytes) {
  if (bytes > limits_.memory - used_)
    throw Failure{.what = "the template's values need too much memory",
                  .expected = fmt::format("at most {} bytes", limits_.memory)};
  used_ += bytes;
}

void Budget::check_text(size_t bytes) const {
  if (bytes > limits_.text)
    throw Failure{.what = "the template makes too much text",
                  .expected = fmt::format("at most {} bytes", limits_.text)};
}

void spend_steps(size_t count) {
  if (Budget* budget = Budget::current()) budget->step(count);
}

void check_text_size(size_t bytes) {
  if (const Budget* budget = Budget::current()) budget->check_text(bytes);
}

void check_text_size(size_t count, size_t size) {
  size_t product = 0;
  if (__builtin_mul_overflow(count, size, &product)) product = static_cast<size_t>(-1);
  check_text_size(product);
}

}  // namespace octavo::jinja
