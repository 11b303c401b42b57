// Guards of the interpreter: how deep it is, and what becomes of an activation when its function ends.
#pragma once

#include "text/jinja/interpreter.h"

namespace octavo::jinja {

class Interpreter::Level {
 public:
  explicit Level(Interpreter* interpreter) : level_(interpreter->level_) {
    if (++level_ > interpreter->max_level_) {
      --level_;
      throw Failure{.what = "the template is nested too deeply when it runs",
                    .expected = "fewer levels of macros, blocks and expressions within each other"};
    }
  }
  ~Level() { --level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& level_;
};

// When the function ends, an activation that macros or loops still refer to is kept, since they may refer to each
// other.
class FinishGuard {
 public:
  FinishGuard(std::vector<ActivationPtr>* finished, const ActivationPtr& activation)
      : finished_(finished), activation_(activation) {}
  ~FinishGuard() {
    if (activation_.use_count() > 1) finished_->push_back(activation_);
  }
  FinishGuard(const FinishGuard&) = delete;
  FinishGuard& operator=(const FinishGuard&) = delete;

 private:
  std::vector<ActivationPtr>* finished_;
  const ActivationPtr& activation_;
};

}  // namespace octavo::jinja
