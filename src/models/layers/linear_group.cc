#include "models/layers/linear_group.h"

#include <algorithm>
#include <cmath>

#include "models/layers/weight_loader.h"

namespace octavo {
namespace {

struct Member {
  const LinearModule* module;
  const LinearPlan* plan;
  StoredLinear stored;
  int64_t column;  // in the group's output

  float input_scale() const { return stored.input_scale.value_or(1.0f); }
  const std::vector<int32_t>& outlier_channels() const { return stored.outliers.channels; }
  bool same_input(const Member& other) const {
    return plan->activation == other.plan->activation && input_scale() == other.input_scale() &&
           outlier_channels() == other.outlier_channels();
  }
};

// Members [begin, end) can be rows of one packed layer: same formats, and slabs that start on whole panels.
bool can_stack(std::span<const Member> members) {
  int64_t row = 0;
  for (const Member& member : members) {
    if (member.plan->weight != members[0].plan->weight || !member.same_input(members[0]) || row % 32 != 0) return false;
    row += member.module->rows;
  }
  return true;
}

Result<PackedLinear> pack_members(const Checkpoint& checkpoint, std::span<Member> members, Isa isa, ThreadPool& pool,
                                  std::vector<LinearLoad>& report) {
  LinearKey key{
      .weight = members[0].plan->weight, .activation = members[0].plan->activation, .cols = members[0].module->cols};
  bool has_bias = false;
  for (const Member& member : members) {
    key.rows += member.module->rows;
    has_bias = has_bias || member.stored.bias.has_value();
  }
  std::vector<std::string> refused;
  const LinearKernel& kernel = choose_linear(key, isa, &refused);
  PackedLinear packed = kernel.allocate(key);
  packed.kernel = &kernel;
  if (has_bias) packed.bias = AlignedArray<float>(static_cast<size_t>(key.rows));
  if (const auto& channels = members[0].outlier_channels(); !channels.empty())
    packed.allocate_outliers(std::ssize(channels));
  int64_t row = 0;
  for (Member& member : members) {
    OCTAVO_ASSIGN(const double error, load_weight(checkpoint, member.stored, packed, row, pool));
    if (member.stored.bias)
      std::copy(member.stored.bias->begin(), member.stored.bias->end(), packed.bias.begin() + row);
    packed.pack_outliers(row, member.stored.outliers.weight);
    report.push_back(
        {.module = member.module->name,
         .stored = member.stored.format,
         .planned = key.weight,
         .kernel = std::string(kernel.name),
         .refused = refused,
         .rows = member.module->rows,
         .cols = key.cols,
         .bytes = packed.bytes() * static_cast<size_t>(member.module->rows) / static_cast<size_t>(key.rows),
         .error = error});
    row += member.module->rows;
  }
  return packed;
}

}  // namespace

Result<LinearGroup> LinearGroup::load(const Checkpoint& checkpoint, const PrecisionPlan& plan,
                                      std::span<const LinearModule> modules, LinearSource source, Isa isa,
                                      ThreadPool& pool, std::vector<LinearLoad>& report) {
  LinearGroup group;
  std::vector<Member> members;
  for (const LinearModule& module : modules) {
    OCTAVO_ASSIGN(StoredLinear stored, source(module));
    const TensorFormat& activation = plan.linear(module.name).activation;
    if (activation.granularity == Granularity::kTensor && !stored.input_scale)
      return fail({.what = "static activations without a scale",
                   .where = module.name,
                   .found = "a checkpoint that stores none",
                   .expected = fmt::format("{}.input_scale", module.name),
                   .remedy = "calibrate one: octavo quantize MODEL OUT --scheme fp8-static --calibrate FILE"});
    members.push_back({&module, &plan.linear(module.name), std::move(stored), group.rows_});
    group.rows_ += module.rows;
    group.cols_ = module.cols;
  }
  // Runs of neighbours that can share one packed layer; then each layer joins the input it reads.
  for (size_t begin = 0; begin < members.size();) {
    size_t end = begin + 1;
    while (end < members.size() && can_stack(std::span(members).subspan(begin, end + 1 - begin))) ++end;
    OCTAVO_ASSIGN(PackedLinear packed,
                  pack_members(checkpoint, std::span(members).subspan(begin, end - begin), isa, pool, report));
    const Member& first = members[begin];
    auto input = std::find_if(group.inputs_.begin(), group.inputs_.end(), [&](const Input& candidate) {
      return candidate.format == first.plan->activation && candidate.stored_scale == first.input_scale() &&
             candidate.outlier_channels == first.outlier_channels();
    });
    if (input == group.inputs_.end()) {
      group.inputs_.push_back({.format = first.plan->activation,
                               .stored_scale = first.input_scale(),
                               .outlier_channels = first.outlier_channels()});
      input = std::prev(group.inputs_.end());
    }
    input->layers.push_back(std::move(packed));
    input->columns.push_back(first.column);
    begin = end;
  }
  return group;
}

size_t LinearGroup::bytes() const {
  size_t total = 0;
  for (const Input& input : inputs_)
    for (const PackedLinear& layer : input.layers) total += layer.bytes();
  return total;
}

void LinearGroup::run(int64_t num_rows, FunctionRef<void(const Activation&)> produce, float* output,
                      int64_t output_stride, bool accumulate, ActivationBuffer& buffer, ThreadPool& pool,
                      Scratch& scratch) const {
  for (const Input& input : inputs_) {
    const Activation activation =
        buffer.resize(input.format, num_rows, cols_, input.stored_scale, input.outlier_channels);
    produce(activation);
    for (size_t i = 0; i < input.layers.size(); ++i) {
      const PackedLinear& layer = input.layers[i];
      layer.kernel->run({.weight = &layer,
                         .input = activation,
                         .output = output + input.columns[i],
                         .output_stride = output_stride,
                         .accumulate = accumulate},
                        pool, scratch);
    }
  }
}

}  // namespace octavo
