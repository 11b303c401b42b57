// octavo logits: what the model computes for a prompt, as safetensors: what one compares with another engine.
#include <fmt/format.h>

#include <charconv>
#include <cstring>

#include "base/json.h"
#include "checkpoint/safetensors_writer.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "engine/sequence.h"

namespace octavo {
namespace {

Result<std::vector<TokenId>> parse_ids(const std::string& text) {
  std::vector<TokenId> ids;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    TokenId id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (next < end && *next != ','))
      return fail(
          {.what = "not a list of token ids", .where = "--ids", .found = text, .expected = "for example 1,2,3"});
    ids.push_back(id);
    at = next + 1;
  }
  return ids;
}

class LogitsCommand final : public Command {
 public:
  std::string_view name() const override { return "logits"; }
  std::string_view group() const override { return "Look inside"; }
  std::string_view summary() const override { return "Logits (and hidden states) of a prompt as a safetensors file"; }
  bool wants_json() const override { return output_.json; }

  void declare(Flags& flags) override {
    model_.declare(flags);
    flags.option("prompt", prompt_, "Text, tokenized without special tokens");
    flags.option("ids", ids_, "Token ids instead: 1,2,3");
    flags.option("out", out_, "The file to write: input_ids I64 [T], logits F32 [T, V], hidden.{i} F32 [T, H]");
    flags.flag("hidden", hidden_, "Also the input of every layer, and the output of the final norm");
    flags.option("chunk", chunk_, "Rows that go through the model at once (results do not depend on it)");
    output_.declare(flags);
  }

  Result<void> run() override {
    if (out_.empty()) return fail({.what = "no file to write", .where = "--out", .expected = "a .safetensors path"});
    if (prompt_.empty() == ids_.empty()) return fail({.what = "give either --prompt or --ids"});
    if (chunk_ < 1)
      return fail({.what = "chunk is out of range",
                   .where = "--chunk",
                   .found = std::to_string(chunk_),
                   .expected = "at least 1"});
    OCTAVO_ASSIGN(const std::unique_ptr<Model> model, model_.load(output_.json, !prompt_.empty()));
    std::vector<TokenId> ids;
    if (ids_.empty()) {
      ids = model->tokenizer().encode(prompt_, false);
    } else {
      OCTAVO_ASSIGN(ids, parse_ids(ids_));
    }
    return compute(*model, ids);
  }

 private:
  Result<void> compute(Model& model, const std::vector<TokenId>& ids) {
    const ModelConfig& c = model.config();
    const auto count = static_cast<int64_t>(ids.size());
    PagePool kv = model.make_kv_cache(count);
    Sequence sequence(model, kv);
    std::vector<float> logits(static_cast<size_t>(count * c.vocab_size));
    std::vector<std::vector<float>> hidden(hidden_ ? static_cast<size_t>(c.num_layers) + 1 : 0,
                                           std::vector<float>(static_cast<size_t>(count * c.hidden_size)));
    Decoder::HiddenHook hook;
    if (hidden_)
      hook = [&](int64_t i, const float* rows, int64_t stride) {
        const int64_t first = sequence.length(), rows_now = std::min(chunk_, count - first);
        for (int64_t r = 0; r < rows_now; ++r)
          std::memcpy(hidden[static_cast<size_t>(i)].data() + (first + r) * c.hidden_size, rows + r * stride,
                      static_cast<size_t>(c.hidden_size) * sizeof(float));
      };
    OCTAVO_TRY(sequence.feed_all_logits(
        ids,
        [&](int64_t first, const float* rows, int64_t n, int64_t stride) {
          for (int64_t r = 0; r < n; ++r)
            std::memcpy(logits.data() + (first + r) * c.vocab_size, rows + r * stride,
                        static_cast<size_t>(c.vocab_size) * sizeof(float));
        },
        chunk_, hook));
    return write(c, ids, logits, hidden);
  }

  Result<void> write(const ModelConfig& c, const std::vector<TokenId>& ids, const std::vector<float>& logits,
                     const std::vector<std::vector<float>>& hidden) {
    const auto count = static_cast<int64_t>(ids.size());
    std::vector<TensorToWrite> tensors = {{"input_ids", ElementType::kInt64, {count}},
                                          {"logits", ElementType::kF32, {count, c.vocab_size}}};
    for (size_t i = 0; i < hidden.size(); ++i)
      tensors.push_back({fmt::format("hidden.{}", i), ElementType::kF32, {count, c.hidden_size}});
    OCTAVO_ASSIGN(SafetensorsWriter writer, SafetensorsWriter::create(out_, tensors));
    const std::vector<int64_t> wide(ids.begin(), ids.end());
    OCTAVO_TRY(writer.write("input_ids", 0, std::as_bytes(std::span(wide))));
    OCTAVO_TRY(writer.write("logits", 0, std::as_bytes(std::span(logits))));
    for (size_t i = 0; i < hidden.size(); ++i)
      OCTAVO_TRY(writer.write(fmt::format("hidden.{}", i), 0, std::as_bytes(std::span(hidden[i]))));
    OCTAVO_TRY(writer.commit());
    if (output_.json)
      fmt::print("{}\n", Json({{"file", out_}, {"tokens", count}, {"vocab_size", c.vocab_size}}).dump(2));
    else
      fmt::print("{}: {} tokens, {} logits each\n", out_, count, c.vocab_size);
    return {};
  }

  ModelFlags model_;
  OutputOptions output_;
  std::string prompt_, ids_, out_;
  bool hidden_ = false;
  int64_t chunk_ = 128;
};

}  // namespace

std::unique_ptr<Command> make_logits_command() {
  return std::make_unique<LogitsCommand>();
}

}  // namespace octavo
