// One maker per subcommand; each lives in the file of its name.
#pragma once

#include <memory>

#include "cli/flags.h"

namespace octavo {

std::unique_ptr<Command> make_run_command();
std::unique_ptr<Command> make_serve_command();
std::unique_ptr<Command> make_tokenize_command();
std::unique_ptr<Command> make_logits_command();
std::unique_ptr<Command> make_quantize_command();
std::unique_ptr<Command> make_convert_command();
std::unique_ptr<Command> make_inspect_command();
std::unique_ptr<Command> make_evaluate_command();
std::unique_ptr<Command> make_sensitivity_command();
std::unique_ptr<Command> make_accept_command();
std::unique_ptr<Command> make_bench_command();
std::unique_ptr<Command> make_bench_serve_command();
std::unique_ptr<Command> make_ladder_command();

}  // namespace octavo
