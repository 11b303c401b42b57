#include "cli/flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/version.h"

namespace octavo {

struct Flags::Impl {
  CLI::App* app;
  std::string group = "Options";

  template <class T>
  void option(std::string_view name, T& value, std::string_view help) {
    app->add_option("--" + std::string(name), value, std::string(help))->group(group)->capture_default_str();
  }
};

Flags::Flags(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Flags::~Flags() = default;

void Flags::argument(std::string_view name, std::string& value, std::string_view help) {
  impl_->app->add_option(std::string(name), value, std::string(help))->required();
}
void Flags::argument(std::string_view name, std::string& value, std::string_view help, std::string_view fallback) {
  value = fallback;
  impl_->app->add_option(std::string(name), value, std::string(help))->capture_default_str();
}
void Flags::option(std::string_view name, std::string& value, std::string_view help) {
  impl_->option(name, value, help);
}
void Flags::option(std::string_view name, int64_t& value, std::string_view help) {
  impl_->option(name, value, help);
}
void Flags::option(std::string_view name, uint64_t& value, std::string_view help) {
  impl_->option(name, value, help);
}
void Flags::option(std::string_view name, int& value, std::string_view help) {
  impl_->option(name, value, help);
}
void Flags::option(std::string_view name, float& value, std::string_view help) {
  impl_->option(name, value, help);
}
void Flags::option(std::string_view name, std::vector<std::string>& values, std::string_view help) {
  impl_->app->add_option("--" + std::string(name), values, std::string(help))
      ->group(impl_->group)
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
}
void Flags::flag(std::string_view name, bool& value, std::string_view help) {
  impl_->app->add_flag("--" + std::string(name), value, std::string(help))->group(impl_->group);
}
void Flags::group(std::string_view title) {
  impl_->group = title;
}
GivenFlags Flags::given() const {
  return GivenFlags(*impl_->app);
}

namespace {

Result<void> refusal(std::string flag, const std::string& why) {
  return fail({.what = "the flag would do nothing: " + why, .where = std::move(flag), .remedy = "leave it out"});
}

}  // namespace

bool GivenFlags::operator()(std::string_view name) const {
  return app_->count("--" + std::string(name)) > 0;
}
Result<void> GivenFlags::refuse(std::initializer_list<std::string_view> names, const std::string& why) const {
  for (const std::string_view name : names)
    if ((*this)(name)) return refusal("--" + std::string(name), why);
  return {};
}
Result<void> GivenFlags::refuse_group(const std::string& title, const std::string& why) const {
  for (const CLI::Option* option : app_->get_options())
    if (option->get_group() == title && option->count() > 0) return refusal(option->get_name(), why);
  return {};
}

namespace {

void print_error(const Error& error, bool json) {
  if (json) {
    const nlohmann::ordered_json out = {{"error",
                                         {{"what", error.what},
                                          {"where", error.where},
                                          {"found", error.found},
                                          {"expected", error.expected},
                                          {"remedy", error.remedy}}}};
    fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  fmt::print(stderr, "octavo: {}\n", error.message());
}

// Adds "NAME", or "PARENT NAME" below the command PARENT, whose own arguments then need not be given.
CLI::App* add_command(CLI::App& app, const Command& command) {
  const std::string name(command.name());
  const size_t space = name.find(' ');
  CLI::App* parent = space == std::string::npos ? &app : app.get_subcommand(name.substr(0, space));
  CLI::App* sub = parent->add_subcommand(space == std::string::npos ? name : name.substr(space + 1),
                                         std::string(command.summary()));
  if (parent == &app) return sub;
  std::vector<CLI::Option*> required;  // CLI11 would take the subcommand's name for the first of them
  for (CLI::Option* option : parent->get_options())
    if (option->get_required()) required.push_back(option->required(false));
  parent->parse_complete_callback([parent, required] {
    for (const CLI::Option* option : required)
      if (parent->get_subcommands().empty() && option->count() == 0) throw CLI::RequiredError(option->get_name());
  });
  return sub;
}

}  // namespace

int run_commands(int argc, char** argv, const std::vector<std::unique_ptr<Command>>& commands) {
  CLI::App app{"Octavo: one low-precision dataflow from checkpoint to token."};
  app.set_version_flag("--version", std::string("octavo ") + kVersion);
  app.require_subcommand(1);
  app.footer("`octavo COMMAND --help` shows a command's flags.");
  std::vector<std::pair<CLI::App*, Command*>> known;
  for (const std::unique_ptr<Command>& command : commands) {
    CLI::App* sub = add_command(app, *command);
    sub->group(std::string(command->group()));
    Flags flags(std::make_unique<Flags::Impl>(Flags::Impl{.app = sub}));
    command->declare(flags);
    known.emplace_back(sub, command.get());
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  for (auto entry = known.rbegin(); entry != known.rend(); ++entry) {  // a subcommand before its parent
    const auto& [sub, command] = *entry;
    if (!sub->parsed()) continue;
    const Result<void> result = command->run();
    if (result) return command->exit_code();
    print_error(result.error(), command->wants_json());
    return 1;
  }
  return 2;
}

}  // namespace octavo
