// octavo evaluate MODEL --needle: the grid of depths and lengths, per KV format.
#include <fmt/format.h>

#include "base/json.h"
#include "cli/evaluate_modes.h"
#include "cli/terminal.h"
#include "evaluate/kv_table.h"
#include "evaluate/model_facts.h"
#include "evaluate/needle.h"

namespace octavo {
namespace {

struct Grid {
  std::string kv;
  std::vector<NeedleCell> cells;
};

Result<NeedleOptions> needle_options(const EvaluateFlags& flags) {
  NeedleOptions options{.tries = flags.tries};
  if (flags.selection.seed != 0) options.seed = flags.selection.seed;
  OCTAVO_ASSIGN(options.lengths, parse_numbers(flags.lengths, "--lengths"));
  OCTAVO_ASSIGN(options.depths, parse_numbers(flags.depths, "--depths"));
  return options;
}

void print(const Grid& grid, const NeedleOptions& options) {
  std::vector<std::string> header = {fmt::format("KV {}", grid.kv)};
  for (const int64_t depth : options.depths) header.push_back(fmt::format("{} %", depth));
  Table table(header);
  const size_t columns = options.depths.size();
  int64_t found = 0, tries = 0;
  for (size_t row = 0; row < options.lengths.size(); ++row) {
    std::vector<std::string> cells = {fmt::format("{} tokens", options.lengths[row])};
    for (size_t c = 0; c < columns; ++c) {
      const NeedleCell& cell = grid.cells[row * columns + c];
      cells.push_back(fmt::format("{}/{} ({:.2f})", cell.found, cell.tries, cell.logprob));
      found += cell.found;
      tries += cell.tries;
    }
    table.add(std::move(cells));
  }
  fmt::print("{}found {} of {}\n\n", table.text(), found, tries);
}

Json json_of(const Grid& grid) {
  return {{"kv", grid.kv}, {"cells", needle_cells(grid.cells)}};
}

}  // namespace

Result<void> evaluate_needle(const EvaluateFlags& flags) {
  OCTAVO_ASSIGN(const std::string text, evaluation_text(flags));
  OCTAVO_ASSIGN(const NeedleOptions options, needle_options(flags));
  OCTAVO_ASSIGN(const ModelSpec spec, model_spec(flags));
  std::vector<std::string> names = split_list(flags.kv_dtypes);
  if (names.empty()) names = {""};  // the plan's own
  OCTAVO_ASSIGN(std::optional<SectionLog> log,
                open_sections(flags, "--needle", {spec}, text, {{"seed", options.seed}, {"tries", options.tries}}));
  std::vector<Grid> grids;
  for (const std::string& name : names) {
    ModelOptions model_options = spec.options;
    if (!name.empty()) {
      OCTAVO_ASSIGN(const KvChoice choice, parse_kv_choice(name));
      model_options.plan = with_kv(spec.options.plan, choice);
    }
    OCTAVO_ASSIGN(const std::unique_ptr<Model> model, Model::load(spec.path, model_options));
    Grid grid{.kv = name.empty() ? kv_cache_name(model->plan()) : name};
    Progress progress(fmt::format("needle {}", name), flags.output.json);
    OCTAVO_ASSIGN(grid.cells, needle_grid(
                                  *model, text, options,
                                  [&](int64_t done, int64_t total) {
                                    progress.update(static_cast<double>(done), static_cast<double>(total));
                                  },
                                  address(log), "KV " + grid.kv));
    grids.push_back(std::move(grid));
  }
  if (!flags.output.json) {
    fmt::print("Needle: found of tries, by depth (mean ln P of the answer)\n\n");
    for (const Grid& grid : grids) print(grid, options);
    return {};
  }
  Json out = {{"seed", options.seed}, {"grids", Json::array()}};
  for (const Grid& grid : grids) out["grids"].push_back(json_of(grid));
  fmt::print("{}\n", out.dump(2));
  return {};
}

}  // namespace octavo
