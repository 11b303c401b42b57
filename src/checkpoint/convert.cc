#include "checkpoint/convert.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors_writer.h"
#include "numerics/bits.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

constexpr int64_t kChunkValues = int64_t{1} << 18;

// Finite values only; beyond the largest BF16 it saturates like every encoder here.
uint16_t round_to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t code = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  return static_cast<uint16_t>((code & 0x7FFFu) == 0x7F80u ? code - 1 : code);
}

class Converter {
 public:
  Converter(const Checkpoint& checkpoint, SafetensorsWriter& writer, ConvertProgress progress,
            const std::function<void(const ConvertProgress&)>& report)
      : checkpoint_(checkpoint), writer_(writer), progress_(progress), report_(report) {}

  Result<void> tensor(const TensorEntry& entry) {
    const bool vector = entry.shape.size() < 2;
    const int64_t cols = entry.shape.empty() ? 1 : entry.shape.back(), rows = vector ? 1 : entry.shape.front();
    const int64_t step = std::max<int64_t>(1, kChunkValues / cols);
    progress_.tensor = entry.name;
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t end = std::min(rows, row + step);
      const auto count = static_cast<size_t>((end - row) * cols);
      values_.resize(count);
      codes_.resize(count);
      OCTAVO_TRY(checkpoint_.tensors().read_f32(entry, row, end, values_));
      checkpoint_.tensors().forget(entry, row, end);
      for (size_t i = 0; i < count; ++i) {
        if (!is_finite(values_[i]))
          return fail({.what = "tensor holds a NaN or an infinity",
                       .where = fmt::format("{}, tensor {}", checkpoint_.path().string(), entry.name),
                       .found = fmt::format("{} in row {}", values_[i], row + static_cast<int64_t>(i) / cols)});
        codes_[i] = round_to_bf16(values_[i]);
      }
      OCTAVO_TRY(writer_.write(entry.name, static_cast<size_t>(row * cols) * 2, std::as_bytes(std::span(codes_))));
      progress_.bytes_done += static_cast<int64_t>(count) * 2;
      if (report_) report_(progress_);
    }
    return {};
  }

 private:
  const Checkpoint& checkpoint_;
  SafetensorsWriter& writer_;
  ConvertProgress progress_;
  const std::function<void(const ConvertProgress&)>& report_;
  std::vector<float> values_;
  std::vector<uint16_t> codes_;
};

// Refuses what config.json cannot say of this class, such as a bias on some of its layers only.
Result<std::string> config_text(const Checkpoint& checkpoint) {
  std::string text = write_model_config(checkpoint.config());
  const auto back = parse_model_config(text, "config.json");
  if (back && *back == checkpoint.config()) return text;
  return fail(
      {.what = "the model cannot be described by a config.json",
       .where = checkpoint.path().string(),
       .found = back ? fmt::format("a {} model with parts that its class does not have", checkpoint.config().model_type)
                     : back.error().what});
}

std::string generation_text(const ModelConfig& config) {
  Json json;
  if (config.bos_token_id) json["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_ids.size() == 1) json["eos_token_id"] = config.eos_token_ids.front();
  if (config.eos_token_ids.size() > 1) json["eos_token_id"] = config.eos_token_ids;
  if (config.pad_token_id) json["pad_token_id"] = *config.pad_token_id;
  return (json.is_null() ? Json::object() : json).dump(2) + "\n";
}

}  // namespace

std::vector<std::pair<std::string, Shape>> model_tensors(const ModelConfig& config) {
  std::vector<std::pair<std::string, Shape>> tensors;
  tensors.emplace_back("model.embed_tokens.weight", Shape{config.vocab_size, config.hidden_size});
  tensors.emplace_back("model.norm.weight", Shape{config.hidden_size});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    tensors.emplace_back(layer + "input_layernorm.weight", Shape{config.hidden_size});
    tensors.emplace_back(layer + "post_attention_layernorm.weight", Shape{config.hidden_size});
    if (!config.qk_norm) continue;
    tensors.emplace_back(layer + "self_attn.q_norm.weight", Shape{config.head_dim});
    tensors.emplace_back(layer + "self_attn.k_norm.weight", Shape{config.head_dim});
  }
  for (const LinearModule& module : config.linear_modules()) {
    const bool qkv = module.role == Role::kQ || module.role == Role::kK || module.role == Role::kV;
    const bool bias = module.role == Role::kHead || module.role == Role::kRouter ? false
                      : qkv                                                      ? config.qkv_bias
                      : module.role == Role::kO                                  ? config.o_bias
                                                                                 : config.mlp_bias;
    if (module.role == Role::kHead && config.tied_embeddings) continue;
    tensors.emplace_back(module.name + ".weight", Shape{module.rows, module.cols});
    if (bias) tensors.emplace_back(module.name + ".bias", Shape{module.rows});
  }
  return tensors;
}

Result<ConvertSummary> convert_to_bf16_folder(const std::filesystem::path& gguf, const std::filesystem::path& out,
                                              const std::function<void(const ConvertProgress&)>& progress) {
  OCTAVO_TRY(check_output(gguf, out));
  OCTAVO_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(gguf));
  if (!checkpoint.is_gguf())
    return fail({.what = "not a GGUF file", .where = gguf.string(), .expected = "a .gguf file"});
  OCTAVO_ASSIGN(const std::string config, config_text(checkpoint));
  std::vector<TensorToWrite> layout;
  std::vector<const TensorEntry*> entries;
  ConvertProgress state;
  std::map<std::string, int> stored_types;
  int64_t bytes_before = 0;
  for (auto& [name, shape] : model_tensors(checkpoint.config())) {
    OCTAVO_ASSIGN(const TensorEntry* entry, checkpoint.entry(name, shape));
    entries.push_back(entry);
    ++stored_types[entry->stored_type];
    bytes_before += entry->stored_bytes;
    int64_t bytes = 2;
    for (const int64_t dim : shape) bytes *= dim;
    state.bytes_total += bytes;
    layout.push_back({.name = std::move(name), .element = ElementType::kBf16, .shape = std::move(shape)});
  }
  OCTAVO_TRY(checkpoint.unused());
  OCTAVO_ASSIGN(OutputFolder folder, OutputFolder::create(gguf, out));
  OCTAVO_ASSIGN(SafetensorsWriter writer,
                SafetensorsWriter::create(folder.path() / "model.safetensors", std::move(layout)));
  Converter converter(checkpoint, writer, state, progress);
  for (const TensorEntry* entry : entries) OCTAVO_TRY(converter.tensor(*entry));
  OCTAVO_TRY(writer.commit());
  OCTAVO_TRY(write_text_file(folder.path() / "config.json", config));
  OCTAVO_TRY(write_text_file(folder.path() / "generation_config.json", generation_text(checkpoint.config())));
  return ConvertSummary{.folder = std::move(folder),
                        .config = checkpoint.config(),
                        .tensors = static_cast<int64_t>(entries.size()),
                        .parameters = state.bytes_total / 2,
                        .bytes_before = bytes_before,
                        .bytes_after = state.bytes_total,
                        .stored_types = std::move(stored_types)};
}

}  // namespace octavo
