// octavo inspect: architecture, plan, memory, dataflow, tensors and hardware, without loading the weights.
#include <fmt/format.h>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "engine/sequence.h"
#include "models/dataflow.h"
#include "precision/kv_format.h"

namespace octavo {
namespace {

std::string rope_text(const RopeConfig& rope) {
  constexpr const char* kNames[] = {"default", "linear", "dynamic", "yarn", "llama3"};
  std::string text = fmt::format("{}, theta {:g}", kNames[static_cast<int>(rope.type)], rope.theta);
  if (rope.factor != 1.0) text += fmt::format(", factor {:g}", rope.factor);
  return text;
}

// Modules of a role whose plan is the same, as one line.
struct PlanLine {
  std::string role, weight, activation, reason;
  int count = 0;
};

std::vector<PlanLine> plan_lines(const ModelConfig& config, const PrecisionPlan& plan) {
  std::vector<PlanLine> lines;
  for (const LinearModule& module : config.linear_modules()) {
    const LinearPlan& p = plan.linear(module.name);
    const PlanLine line{std::string(role_name(module.role)), p.weight.describe(), p.activation.describe(), p.reason};
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const PlanLine& l) {
      return l.role == line.role && l.weight == line.weight && l.activation == line.activation &&
             l.reason == line.reason;
    });
    (same == lines.end() ? lines.insert(lines.end(), line) : same)->count += 1;
  }
  return lines;
}

// Consecutive layers with the same KV cache, as one line.
struct KvLine {
  std::string layers, k, v, reason;
};

std::vector<KvLine> kv_lines(const PrecisionPlan& plan) {
  std::vector<KvLine> lines;
  for (size_t first = 0, next = 0; first < plan.kv.size(); first = next) {
    const KvPlan& kv = plan.kv[first];
    while (next < plan.kv.size() && plan.kv[next] == kv) ++next;
    const size_t count = next - first;
    const bool all = count == plan.kv.size();
    lines.push_back({all ? std::to_string(count) : fmt::format("{} (layers {}-{})", count, first, next - 1),
                     "K " + describe_kv(kv.k, kv.k_options), "V " + describe_kv(kv.v, kv.v_options), kv.reason});
  }
  return lines;
}

class InspectCommand final : public Command {
 public:
  std::string_view name() const override { return "inspect"; }
  std::string_view group() const override { return "Look inside"; }
  std::string_view summary() const override { return "Architecture, precision plan, memory, dataflow, hardware"; }
  bool wants_json() const override { return output_.json; }

  void declare(Flags& flags) override {
    model_.declare(flags);
    flags.group("What to show");
    flags.flag("dataflow", dataflow_, "Every operation of a layer: formats in and out, and the kernel that runs it");
    flags.flag("tensors", tensors_, "Every stored tensor");
    flags.flag("hardware", hardware_, "What this CPU runs natively and what is emulated, with measured rates");
    flags.group("Options");
    output_.declare(flags);
  }

  Result<void> run() override {
    ModelOptions options;
    OCTAVO_TRY(model_.machine.apply(options));
    OCTAVO_ASSIGN(options.plan, model_.request());
    OCTAVO_ASSIGN(const PlannedCheckpoint planned, open_planned(model_.model, options));
    const auto& [checkpoint, plan] = planned;
    const Isa isa = options.isa.value_or(best_isa());
    OCTAVO_ASSIGN(const TensorEntry* embedding,
                  checkpoint.entry("model.embed_tokens.weight",
                                   {checkpoint.config().vocab_size, checkpoint.config().hidden_size}));
    const MemoryPlan memory = memory_plan(checkpoint.config(), plan, embedding->stored_bytes, kPrefillChunk);
    output_.json ? print_json(checkpoint, plan, memory, isa) : print(checkpoint, plan, memory, isa);
    return {};
  }

 private:
  void print(const Checkpoint& checkpoint, const PrecisionPlan& plan, const MemoryPlan& memory, Isa isa) const {
    const ModelConfig& c = checkpoint.config();
    fmt::print("{}\n  {} ({}): {} layers, hidden {}, intermediate {}, {} heads of {} ({} KV), vocabulary {}{}\n",
               checkpoint.path().string(), c.architecture, c.model_type, c.num_layers, c.hidden_size,
               c.intermediate_size, c.num_heads, c.head_dim, c.num_kv_heads, c.vocab_size,
               c.tied_embeddings ? ", tied head" : "");
    if (c.experts)
      fmt::print("  {} experts of {} in {} layers, {} for each token\n", c.experts->count, c.experts->intermediate_size,
                 std::count(c.experts->layers.begin(), c.experts->layers.end(), true), c.experts->per_token);
    fmt::print("  context {}, RoPE {}{}{}{}\n", c.context_length(), rope_text(c.rope),
               c.qkv_bias ? ", q/k/v biases" : "", c.qk_norm ? ", QK norm" : "", sliding(c));
    fmt::print("  stored as {}\n\nPlan: {}\n", checkpoint.dialect() == "none" ? "unquantized" : checkpoint.dialect(),
               plan.scheme);
    Table table({"module", "n", "weight", "activation", "why"});
    for (const size_t column : {2, 3, 4}) table.align_left(column);
    for (const PlanLine& line : plan_lines(c, plan))
      table.add({line.role, std::to_string(line.count), line.weight, line.activation, line.reason});
    for (const KvLine& line : kv_lines(plan)) table.add({"KV cache", line.layers, line.k, line.v, line.reason});
    fmt::print("{}", table.text());
    for (const std::string& note : plan.notes) fmt::print("note: {}\n", note);
    for (const std::string& note : checkpoint.notes()) fmt::print("note: {}\n", note);
    fmt::print(
        "\nMemory: weights {}, embedding {} (mapped), KV {} per token ({} at the full context), scratch about {}\n",
        human_bytes(static_cast<double>(memory.weight_bytes + memory.norm_bytes)),
        human_bytes(static_cast<double>(memory.embedding_bytes)), human_bytes(memory.kv_bytes_per_token),
        human_bytes(memory.kv_bytes_per_token * static_cast<double>(c.context_length())),
        human_bytes(static_cast<double>(memory.scratch_bytes)));
    if (dataflow_) print_dataflow(c, plan, isa);
    if (tensors_) print_tensors(checkpoint);
    if (hardware_) print_hardware(isa);
  }

  static std::string sliding(const ModelConfig& c) {
    const auto layers =
        std::count_if(c.sliding_window.begin(), c.sliding_window.end(), [](int64_t w) { return w > 0; });
    if (layers == 0) return "";
    return fmt::format(", sliding window {} in {} layers",
                       *std::max_element(c.sliding_window.begin(), c.sliding_window.end()), layers);
  }

  // Layers with the same operations are shown once.
  void print_dataflow(const ModelConfig& c, const PrecisionPlan& plan, Isa isa) const {
    const auto key = [](const std::vector<Operation>& operations) {
      std::string text;
      for (const Operation& o : operations) text += o.name + o.input + o.weight + o.output + o.kernel + "\n";
      return text;
    };
    for (int first = 0; first < c.num_layers;) {
      const std::vector<Operation> operations = layer_dataflow(c, plan, first, isa);
      int next = first + 1;
      while (next < c.num_layers && key(layer_dataflow(c, plan, next, isa)) == key(operations)) ++next;
      fmt::print("\nLayers {} to {}\n", first, next - 1);
      print_operations(operations);
      first = next;
    }
    fmt::print("\nHead\n");
    print_operations(layer_dataflow(c, plan, -1, isa));
  }

  static void print_operations(const std::vector<Operation>& operations) {
    Table table({"operation", "input", "weight", "output", "kernel"});
    for (const size_t column : {1, 2, 3, 4}) table.align_left(column);
    for (const Operation& o : operations) table.add({o.name, o.input, o.weight, o.output, o.kernel});
    fmt::print("{}", table.text());
    for (const Operation& o : operations)
      for (const std::string& reason : o.refused) fmt::print("  {} fell back: {}\n", o.name, reason);
  }

  static void print_tensors(const Checkpoint& checkpoint) {
    Table table({"tensor", "type", "shape", "bytes", "file"});
    table.align_left(1);
    table.align_left(4);
    for (const TensorEntry& entry : checkpoint.tensors().entries())
      table.add({entry.name, entry.stored_type, shape_text(entry.shape),
                 human_bytes(static_cast<double>(entry.stored_bytes)), entry.file.filename().string()});
    fmt::print("\n{}", table.text());
  }

  static std::vector<std::pair<std::string, std::string>> hardware_lines(Isa isa) {
    const CpuFeatures& cpu = cpu_features();
    const InstructionRates& rates = instruction_rates();
    const auto rate = [](double value) {
      return value > 0 ? fmt::format("{:.0f} G multiply-adds/s per core", value) : std::string("not there");
    };
    return {{"CPU", cpu.model},
            {"FP32 FMA, AVX2", rate(rates.fma_avx2)},
            {"FP32 FMA, AVX-512", rate(rates.fma_avx512)},
            {"BF16 dot product", rate(rates.bf16_dot)},
            {"INT8 dot product", rate(rates.int8_dot)},
            {"FP8 (E4M3, E5M2)", "emulated: decoded exactly in registers, products and sums FP32"},
            {"BF16",
             rates.bf16_dot > 0 ? "native dot product, used where it is faster than FMA" : "emulated: widened to FP32"},
            {"INT8", rates.int8_dot > 0 ? "native (VNNI)" : "emulated: widened to INT16"},
            {"AMX", cpu.amx ? "there, not used" : "not there"},
            {"chosen", std::string(isa_name(isa))}};
  }

  static void print_hardware(Isa isa) {
    fmt::print("\nHardware\n");
    for (const auto& [name, value] : hardware_lines(isa)) fmt::print("  {:<20} {}\n", name, value);
  }

  static Json operations_json(const std::vector<Operation>& operations) {
    Json out = Json::array();
    for (const Operation& o : operations)
      out.push_back({{"operation", o.name},
                     {"input", o.input},
                     {"weight", o.weight},
                     {"output", o.output},
                     {"kernel", o.kernel},
                     {"refused", o.refused}});
    return out;
  }

  void print_json(const Checkpoint& checkpoint, const PrecisionPlan& plan, const MemoryPlan& memory, Isa isa) const {
    const ModelConfig& c = checkpoint.config();
    Json out = {{"model", checkpoint.path().string()},
                {"architecture", c.architecture},
                {"model_type", c.model_type},
                {"num_layers", c.num_layers},
                {"hidden_size", c.hidden_size},
                {"intermediate_size", c.intermediate_size},
                {"num_heads", c.num_heads},
                {"num_kv_heads", c.num_kv_heads},
                {"head_dim", c.head_dim},
                {"vocab_size", c.vocab_size},
                {"context_length", c.context_length()},
                {"tied_embeddings", c.tied_embeddings},
                {"dialect", checkpoint.dialect()},
                {"scheme", plan.scheme}};
    if (c.experts)
      out["experts"] = {{"count", c.experts->count},
                        {"per_token", c.experts->per_token},
                        {"intermediate_size", c.experts->intermediate_size},
                        {"layers", std::count(c.experts->layers.begin(), c.experts->layers.end(), true)}};
    for (const PlanLine& l : plan_lines(c, plan))
      out["plan"].push_back({{"role", l.role},
                             {"modules", l.count},
                             {"weight", l.weight},
                             {"activation", l.activation},
                             {"reason", l.reason}});
    for (const KvPlan& kv : plan.kv)
      out["kv"].push_back({{"k", describe_kv(kv.k, kv.k_options)},
                           {"v", describe_kv(kv.v, kv.v_options)},
                           {"k_dtype", kv_side_name(kv.k, kv.k_options)},
                           {"v_dtype", kv_side_name(kv.v, kv.v_options)},
                           {"reason", kv.reason}});
    out["notes"] = plan.notes;
    for (const std::string& note : checkpoint.notes()) out["notes"].push_back(note);
    out["memory"] = {{"weight_bytes", memory.weight_bytes + memory.norm_bytes},
                     {"embedding_bytes", memory.embedding_bytes},
                     {"kv_bytes_per_token", memory.kv_bytes_per_token},
                     {"scratch_bytes", memory.scratch_bytes}};
    if (dataflow_) {
      for (int i = 0; i < c.num_layers; ++i)
        out["dataflow"].push_back(operations_json(layer_dataflow(c, plan, i, isa)));
      out["dataflow_head"] = operations_json(layer_dataflow(c, plan, -1, isa));
    }
    if (tensors_)
      for (const TensorEntry& e : checkpoint.tensors().entries())
        out["tensors"].push_back({{"name", e.name},
                                  {"type", e.stored_type},
                                  {"shape", e.shape},
                                  {"bytes", e.stored_bytes},
                                  {"file", e.file.filename().string()}});
    if (hardware_)
      for (const auto& [name, value] : hardware_lines(isa)) out["hardware"][name] = value;
    fmt::print("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
  }

  ModelFlags model_;
  OutputOptions output_;
  bool dataflow_ = false, tensors_ = false, hardware_ = false;
};

}  // namespace

std::unique_ptr<Command> make_inspect_command() {
  return std::make_unique<InspectCommand>();
}

}  // namespace octavo
