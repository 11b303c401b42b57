// Flags: how a subcommand declares what it takes. A thin face over CLI11, which is slow to compile and stays in
// flags.cc.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace CLI {
class App;
}

namespace octavo {

// Which flags were on the command line: asked while the command runs. Names without their dashes.
class GivenFlags {
 public:
  GivenFlags() = default;
  explicit GivenFlags(const CLI::App& app) : app_(&app) {}

  bool operator()(std::string_view name) const;
  // Flags that would do nothing are never taken in silence: an error for the first that was given. `why`: what it would
  // need, or what it does not go with.
  Result<void> refuse(std::initializer_list<std::string_view> names, const std::string& why) const;
  Result<void> refuse_group(const std::string& title, const std::string& why) const;

 private:
  const CLI::App* app_ = nullptr;
};

class Flags {
 public:
  // Positional arguments.
  void argument(std::string_view name, std::string& value, std::string_view help);
  void argument(std::string_view name, std::string& value, std::string_view help,
                std::string_view fallback);  // optional
  // --name VALUE; "name,--other" has two names
  void option(std::string_view name, std::string& value, std::string_view help);
  void option(std::string_view name, std::vector<std::string>& values, std::string_view help);  // may be repeated
  void option(std::string_view name, int64_t& value, std::string_view help);
  void option(std::string_view name, uint64_t& value, std::string_view help);
  void option(std::string_view name, int& value, std::string_view help);
  void option(std::string_view name, float& value, std::string_view help);
  // --name
  void flag(std::string_view name, bool& value, std::string_view help);
  // Flags that follow are listed under this heading in --help.
  void group(std::string_view title);

  GivenFlags given() const;

  struct Impl;
  explicit Flags(std::unique_ptr<Impl> impl);
  ~Flags();

 private:
  std::unique_ptr<Impl> impl_;
};

// A subcommand: declares its flags into its own state, then runs.
class Command {
 public:
  virtual ~Command() = default;
  virtual std::string_view name() const = 0;     // "bench serve": the subcommand serve of bench, which comes before it
  virtual std::string_view group() const = 0;    // heading in `octavo --help`
  virtual std::string_view summary() const = 0;  // one line
  virtual void declare(Flags& flags) = 0;
  virtual Result<void> run() = 0;
  virtual bool wants_json() const { return false; }
  virtual int exit_code() const { return 0; }  // after a run() without an error
};

// Parses argv, runs the chosen command. Returns the exit code: the command's own (0), 1 for an error, 2 for wrong
// usage.
int run_commands(int argc, char** argv, const std::vector<std::unique_ptr<Command>>& commands);

}  // namespace octavo
