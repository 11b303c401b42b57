#include "precision/plan_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/file.h"
#include "precision/model_shape_json.h"

namespace octavo {
namespace {

constexpr std::string_view kKeys[] = {"octavo_plan", "model", "base", "linears", "kv"};

tl::unexpected<Error> bad(const std::filesystem::path& path, std::string what, std::string found = {},
                          std::string expected = {}) {
  return fail({.what = std::move(what),
               .where = path.string(),
               .found = std::move(found),
               .expected = std::move(expected),
               .remedy = "write it with: octavo sensitivity MODEL --from FILE --budget B --plan-out PLAN"});
}

std::string shorten(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

Result<const Json*> member(const Json& object, const char* key, const std::filesystem::path& path) {
  const auto found = object.find(key);
  if (found == object.end()) return bad(path, fmt::format("the plan has no \"{}\"", key));
  return &*found;
}

Result<void> check_header(const Json& file, const std::filesystem::path& path) {
  if (!file.is_object() || !file.contains("octavo_plan"))
    return bad(path, "not a plan file", shorten(file), "an object with \"octavo_plan\": 1");
  if (file["octavo_plan"] != 1)
    return bad(path, "the plan is of another version", shorten(file["octavo_plan"]), "\"octavo_plan\": 1");
  for (const auto& [key, value] : file.items())
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys))
      return bad(path, "unknown key in the plan", fmt::format("\"{}\"", key),
                 "octavo_plan, model, base, linears and kv");
  return {};
}

Result<std::string> scheme_name(const Json& value, std::string_view what, const std::filesystem::path& path) {
  if (!value.is_string()) return bad(path, fmt::format("{}: no scheme", what), shorten(value), "a scheme's name");
  const auto& name = value.get_ref<const std::string&>();
  if (auto known = find_scheme(name); !known) {
    Error error = std::move(known).error();
    error.where = fmt::format("{}, {}", path.string(), what);
    return fail(std::move(error));
  }
  return name;
}

Result<KvNames> kv_names(const Json& value, size_t layer, const std::filesystem::path& path) {
  const std::string what = fmt::format("kv[{}]", layer);
  if (!value.is_object() || value.size() != 2 || !value.contains("k") || !value.contains("v") ||
      !value["k"].is_string() || !value["v"].is_string())
    return bad(path, what + " is not a pair of KV formats", shorten(value), R"({"k": "fp8_e4m3", "v": "bf16"})");
  KvNames names{value["k"].get<std::string>(), value["v"].get<std::string>()};
  for (const std::string* name : {&names.k, &names.v})
    if (auto known = kv_format(*name); !known) {
      Error error = std::move(known).error();
      error.where = fmt::format("{}, {}", path.string(), what);
      return fail(std::move(error));
    }
  return names;
}

}  // namespace

Json json_of(const ModelShape& shape) {
  return {{"architecture", shape.architecture},
          {"layers", shape.layers},
          {"hidden_size", shape.hidden_size},
          {"intermediate_size", shape.intermediate_size},
          {"vocabulary", shape.vocabulary}};
}

Result<ModelShape> read_model_shape(const Json& file, const std::filesystem::path& where) {
  const auto model = file.find("model");
  const auto wrong = [&](std::string_view key) {
    return fail({.what = "the file does not say which model it is for",
                 .where = where.string(),
                 .found = model == file.end() ? "no \"model\"" : shorten(*model),
                 .expected = fmt::format("\"model\" with \"{}\"", key)});
  };
  ModelShape shape;
  if (model == file.end() || !model->is_object() || !model->contains("architecture") ||
      !(*model)["architecture"].is_string())
    return wrong("architecture");
  shape.architecture = (*model)["architecture"].get<std::string>();
  struct Number {
    const char* key;
    int64_t& value;
  };
  for (const Number& number :
       {Number{"layers", shape.layers}, Number{"hidden_size", shape.hidden_size},
        Number{"intermediate_size", shape.intermediate_size}, Number{"vocabulary", shape.vocabulary}}) {
    const auto value = model->find(number.key);
    if (value == model->end() || !value->is_number_integer()) return wrong(number.key);
    number.value = value->get<int64_t>();
  }
  return shape;
}

Result<void> check_made_for(const ModelShape& found, const ModelShape& model, std::string_view what,
                            const std::filesystem::path& file) {
  std::string found_text, expected_text;
  const auto differs = [&](std::string_view key, const auto& a, const auto& b) {
    if (a == b) return;
    found_text += fmt::format("{}{} {}", found_text.empty() ? "" : ", ", key, a);
    expected_text += fmt::format("{}{} {}", expected_text.empty() ? "" : ", ", key, b);
  };
  differs("architecture", found.architecture, model.architecture);
  differs("layers", found.layers, model.layers);
  differs("hidden_size", found.hidden_size, model.hidden_size);
  differs("intermediate_size", found.intermediate_size, model.intermediate_size);
  differs("vocabulary", found.vocabulary, model.vocabulary);
  if (found_text.empty()) return {};
  return fail({.what = fmt::format("{} is for another model", what),
               .where = file.string(),
               .found = std::move(found_text),
               .expected = std::move(expected_text),
               .remedy = "take the file that was made for this model, or measure it: octavo sensitivity MODEL"});
}

Result<PlanFile> parse_plan_file(std::string_view json, const std::filesystem::path& path) {
  OCTAVO_ASSIGN(const Json file, parse_json(json, path.string()));
  OCTAVO_TRY(check_header(file, path));
  PlanFile plan{.path = path};
  OCTAVO_ASSIGN(plan.model, read_model_shape(file, path));
  OCTAVO_ASSIGN(const Json* base, member(file, "base", path));
  OCTAVO_ASSIGN(plan.base, scheme_name(*base, "\"base\"", path));
  OCTAVO_ASSIGN(const Json* linears, member(file, "linears", path));
  if (!linears->is_object()) return bad(path, "\"linears\" is not an object", shorten(*linears), "module: scheme");
  for (const auto& [module, scheme] : linears->items()) {
    OCTAVO_ASSIGN(std::string name, scheme_name(scheme, module, path));
    plan.linears.emplace_back(module, std::move(name));
  }
  OCTAVO_ASSIGN(const Json* kv, member(file, "kv", path));
  if (!kv->is_array()) return bad(path, "\"kv\" is not a list", shorten(*kv), "one entry per layer");
  for (const Json& layer : *kv) {
    OCTAVO_ASSIGN(KvNames names, kv_names(layer, plan.kv.size(), path));
    plan.kv.push_back(std::move(names));
  }
  return plan;
}

Result<PlanFile> read_plan_file(const std::filesystem::path& path) {
  OCTAVO_ASSIGN(const std::string text, read_text_file(path, size_t{64} << 20));
  return parse_plan_file(text, path);
}

std::string plan_file_text(const PlanFile& plan) {
  Json linears = Json::object(), kv = Json::array();
  for (const auto& [module, scheme] : plan.linears) linears[module] = scheme;
  for (const KvNames& layer : plan.kv) kv.push_back({{"k", layer.k}, {"v", layer.v}});
  const Json file = {{"octavo_plan", 1},
                     {"model", json_of(plan.model)},
                     {"base", plan.base},
                     {"linears", std::move(linears)},
                     {"kv", std::move(kv)}};
  return file.dump(1) + "\n";
}

Result<PrecisionPlan> make_plan(const std::vector<LinearModule>& modules, const ModelShape& model,
                                const PlanFile& file) {
  OCTAVO_TRY(check_made_for(file.model, model, "the plan", file.path));
  PrecisionPlan plan;
  const std::string from = fmt::format("plan {}", file.path.filename().string());
  plan.scheme = from;
  std::set<std::string_view> known;
  for (const LinearModule& module : modules) known.insert(module.name);
  for (const auto& [name, scheme_name] : file.linears) {
    if (!known.contains(name))
      return bad(file.path, "the plan names a module that the model does not have", name,
                 fmt::format("linear layers of {}", model.architecture));
    OCTAVO_ASSIGN(const Scheme* scheme, find_scheme(scheme_name));
    plan.linears[name] = {scheme->weight, scheme->activation, fmt::format("{}: {}", from, scheme->name)};
  }
  for (const LinearModule& module : modules) {
    const auto planned = plan.linears.find(module.name);
    if (planned == plan.linears.end()) return bad(file.path, "the plan lacks a module of the model", "", module.name);
    OCTAVO_TRY(check_weight_shape(module, planned->second.weight));
  }
  if (static_cast<int64_t>(file.kv.size()) != model.layers)
    return bad(file.path, "the plan's \"kv\" has the wrong length", fmt::format("{} layers", file.kv.size()),
               fmt::format("{}", model.layers));
  for (const KvNames& names : file.kv) {
    OCTAVO_ASSIGN(const TensorFormat k, kv_format(names.k));
    OCTAVO_ASSIGN(const TensorFormat v, kv_format(names.v));
    plan.kv.push_back({k, v, from});
  }
  return plan;
}

}  // namespace octavo
