// All subcommands, in the order of --help.
#include "cli/commands.h"

namespace octavo {

int run_app(int argc, char** argv) {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(make_run_command());
  commands.push_back(make_serve_command());
  commands.push_back(make_tokenize_command());
  commands.push_back(make_logits_command());
  commands.push_back(make_quantize_command());
  commands.push_back(make_convert_command());
  commands.push_back(make_inspect_command());
  commands.push_back(make_evaluate_command());
  commands.push_back(make_sensitivity_command());
  commands.push_back(make_accept_command());
  commands.push_back(make_bench_command());
  commands.push_back(make_bench_serve_command());
  commands.push_back(make_ladder_command());
  return run_commands(argc, argv, commands);
}

}  // namespace octavo
