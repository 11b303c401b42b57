// What one rendering may use: steps, live memory, bytes of text. Values charge themselves to the budget of their
// thread.
#pragma once

#include <cstddef>
#include <string>

namespace octavo::jinja {

// Leaves the interpreter as an exception and becomes an Error in chat_template.cc: it never crosses the library's
// border.
struct Failure {
  std::string what;
  std::string expected;
  size_t position = kUnknown;  // byte offset in the template
  static constexpr size_t kUnknown = static_cast<size_t>(-1);
};
[[noreturn]] void raise(std::string what);

class Budget {
 public:
  struct Limits {
    size_t text = 0;    // bytes of any one string, and of the output
    size_t memory = 0;  // bytes of all live values
    size_t steps = 0;
  };
  explicit Budget(Limits limits);  // becomes this thread's current budget
  ~Budget();
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  static Budget* current();  // null while no template is being rendered

  // Each throws Failure when the limit is passed; ask before doing the work.
  void step(size_t count = 1);
  void take(size_t bytes);
  void check_text(size_t bytes) const;

  void give(size_t bytes) { used_ -= bytes; }

 private:
  Limits limits_;
  size_t used_ = 0, steps_ = 0;
  Budget* outer_;
};

// Memory charged for as long as this lives.
class Charge {
 public:
  explicit Charge(size_t bytes) : budget_(Budget::current()), bytes_(bytes) {
    if (budget_ != nullptr) budget_->take(bytes);
  }
  ~Charge() {
    if (budget_ != nullptr) budget_->give(bytes_);
  }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  void grow(size_t bytes) {
    if (budget_ != nullptr) budget_->take(bytes);
    bytes_ += bytes;
  }

 private:
  Budget* budget_;
  size_t bytes_;
};

// Free when nothing is being rendered.
void spend_steps(size_t count);
void check_text_size(size_t bytes);
// Throws when count * size passes the text limit, without overflowing.
void check_text_size(size_t count, size_t size);

}  // namespace octavo::jinja
