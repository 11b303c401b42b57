// Quantized folders, read back: every code and scale as the definition says, nothing lost, nothing half-written.
#include "quantize/quantize_checkpoint.h"

#include <cmath>
#include <fstream>

#include "file_size_limit.h"
#include "formats/quantize_rows.h"
#include "model_folder.h"
#include "precision/schemes.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

class QuantizeCheckpoint : public testing::Test {
 protected:
  void make(ElementType element = ElementType::kBf16, const Change& change = {}) {
    write_model(model_, kOddModel, element, change);
  }
  Result<QuantizeSummary> quantize_to(const std::string& name, const QuantizeOptions& options) {
    return quantize_checkpoint(open_model(model_), folder_ / name, options);
  }
  std::string error_of(const std::string& name, const QuantizeOptions& options) {
    const auto summary = quantize_to(name, options);
    return summary ? "" : summary.error().message();
  }
  // Folders beside the model, so that nothing half-written stays unseen.
  std::set<std::string> siblings() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) names.insert(entry.path().filename().string());
    return names;
  }

  TestFolder folder_;
  fs::path model_ = folder_ / "model";
};

struct Case {
  std::string scheme, dialect, written;  // dialect asked for, dialect expected
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.scheme << " " << c.dialect;
}
class EveryScheme : public QuantizeCheckpoint, public testing::WithParamInterface<Case> {};

// With one scale per tensor, the scale of q, k and v comes from all three.
std::vector<float> expected_values(const Checkpoint& source, const LinearModule& module, const TensorFormat& format) {
  const std::vector<float> values = plain_values(*source.tensors().find(module.name + ".weight"));
  if (format.granularity != Granularity::kTensor && !format.outer())
    return dequantize(quantize(values, module.rows, module.cols, format).view());
  const auto part = [](Role role) {
    return role <= Role::kV ? 0 : role == Role::kGate || role == Role::kUp ? 1 : 2 + static_cast<int>(role);
  };
  float amax = 0;
  for (const LinearModule& other : source.config().linear_modules())
    if (other.layer == module.layer && part(other.role) == part(module.role))
      for (const float value : plain_values(*source.tensors().find(other.name + ".weight")))
        amax = std::max(amax, std::fabs(value));
  if (format.outer()) {  // and so does the outer scale
    Matrix matrix = quantize(values, module.rows, module.cols, format);
    matrix.outer = outer_from_amax(amax, format);
    const RowsView rows{ElementType::kF32, reinterpret_cast<const std::byte*>(values.data()), module.rows, module.cols};
    quantize_rows(rows, format, ScaleGrid{.scales = matrix.scales, .outer = matrix.outer},
                  {matrix.codes.data(), matrix.codes.size()});
    return dequantize(matrix.view());
  }
  const float scale = scale_from_amax(amax, format);
  std::vector<float> result;
  for (const float value : values) {
    std::byte code{};
    store_element(format.element, &code, 0, value / scale);
    result.push_back(load_element(format.element, &code, 0) * scale);
  }
  return result;
}

TEST_P(EveryScheme, ReadsBackAsTheDefinitionSays) {
  make();
  const auto summary =
      quantize_to("out", {.plan = {.scheme = GetParam().scheme}, .dialect = GetParam().dialect, .threads = 2});
  ASSERT_TRUE(summary.has_value()) << summary.error().message();
  EXPECT_EQ(summary->dialect, GetParam().written);
  EXPECT_EQ(summary->quantized.size(), 14u);
  const Checkpoint source = open_model(model_), out = open_model(folder_ / "out");
  EXPECT_EQ(out.dialect(), GetParam().written);
  EXPECT_EQ(out.config(), source.config());
  const Scheme& scheme = **find_scheme(GetParam().scheme);
  for (const LinearModule& module : out.config().linear_modules()) {
    const auto linear = out.linear(module.name);
    ASSERT_TRUE(linear.has_value()) << linear.error().message();
    const LinearPlan& plan = out.stored_plan().linear(module.name);
    if (module.role == Role::kHead) {
      EXPECT_EQ(plan.weight, plain_format(ElementType::kBf16));
      continue;
    }
    TensorFormat weight = scheme.weight;
    if (weight.block_rows == 128) weight.scale = ElementType::kF32;  // powers of two are written as FP32
    EXPECT_EQ(plan.weight, weight) << module.name;
    EXPECT_EQ(plan.activation, scheme.activation) << module.name;
    ASSERT_EQ(dequantize(linear->view()), expected_values(source, module, scheme.weight)) << module.name;
    for (const float scale : linear->scales) ASSERT_GT(scale, 0.0f);
  }
  for (const TensorEntry& entry : source.tensors().entries()) {
    if (entry.name.find("_proj.") != std::string::npos) continue;
    const TensorEntry* copy = out.tensors().find(entry.name);
    ASSERT_NE(copy, nullptr) << entry.name;
    EXPECT_EQ(copy->stored_type, "BF16");
    EXPECT_TRUE(std::ranges::equal(copy->plain->data, entry.plain->data)) << entry.name;
  }
  EXPECT_EQ(out.notes(), std::vector<std::string>{});
  EXPECT_EQ(siblings(), (std::set<std::string>{"model", "out"}));
}

TEST_P(EveryScheme, TheSameBytesWithAnyNumberOfThreads) {
  make();
  for (const int threads : {1, 3}) {
    const auto summary =
        quantize_to(std::to_string(threads),
                    {.plan = {.scheme = GetParam().scheme}, .dialect = GetParam().dialect, .threads = threads});
    ASSERT_TRUE(summary.has_value()) << summary.error().message();
  }
  for (const std::string file : {"model.safetensors", "config.json"})
    EXPECT_EQ(read_text_file(folder_ / "1" / file).value(), read_text_file(folder_ / "3" / file).value()) << file;
}

INSTANTIATE_TEST_SUITE_P(
    Dialects, EveryScheme,
    testing::Values(Case{"fp8", "", "compressed-tensors"}, Case{"fp8-weight", "", "compressed-tensors"},
                    Case{"int8", "compressed-tensors", "compressed-tensors"}, Case{"fp8-block", "", "fp8"},
                    Case{"fp8-block", "compressed-tensors", "compressed-tensors"}, Case{"fp8-block-ue8m0", "", "fp8"},
                    Case{"fp8-tensor", "", "fp8"}, Case{"fp8-tensor", "compressed-tensors", "compressed-tensors"},
                    Case{"int4", "", "compressed-tensors"}, Case{"int4-g32", "", "compressed-tensors"},
                    Case{"int4-zp", "", "compressed-tensors"}, Case{"int4", "gptq", "gptq"},
                    Case{"int4-zp", "gptq", "gptq"}, Case{"int4-g32-zp", "gptq", "gptq"},
                    Case{"mxfp4", "", "compressed-tensors"}, Case{"mxfp8", "", "compressed-tensors"},
                    Case{"mxfp8", "modelopt", "modelopt"}, Case{"nvfp4", "", "compressed-tensors"},
                    Case{"nvfp4", "modelopt", "modelopt"}, Case{"fp8", "modelopt", "modelopt"}));

TEST_F(QuantizeCheckpoint, SummaryMeasuresTheLoss) {
  make();
  int64_t last = 0, total = 0;
  const auto summary = quantize_checkpoint(open_model(model_), folder_ / "out",
                                           {.plan = {.scheme = "fp8"}, .threads = 2}, [&](const QuantizeProgress& p) {
                                             EXPECT_GE(p.bytes_done, last);
                                             EXPECT_FALSE(p.tensor.empty());
                                             last = p.bytes_done;
                                             total = p.bytes_total;
                                           });
  ASSERT_TRUE(summary.has_value()) << summary.error().message();
  EXPECT_EQ(last, total);
  EXPECT_EQ(summary->bytes_before, total);
  EXPECT_EQ(summary->tensors_kept, 3 + 2 * 2);  // embedding, norm, head; two norms a layer
  int64_t stored = 0;
  for (const TensorEntry& entry : open_model(folder_ / "out").tensors().entries()) stored += entry.stored_bytes;
  EXPECT_EQ(summary->bytes_after, stored);
  EXPECT_NEAR(summary->mean_error, 0.0265, 0.001);  // Gaussian weights in E4M3
  double worst = 0;
  for (const auto& tensor : summary->quantized) worst = std::max(worst, tensor.error);
  EXPECT_EQ(summary->worst_error, worst);
  EXPECT_NE(summary->worst_tensor.find("_proj.weight"), std::string::npos);
}

TEST_F(QuantizeCheckpoint, EveryOtherKeyOfTheConfigStays) {
  make();
  ASSERT_TRUE(quantize_to("out", {.plan = {.scheme = "fp8-block"}}).has_value());
  Json source = read_config(model_), out = read_config(folder_ / "out");
  EXPECT_EQ(out["quantization_config"]["quant_method"], "fp8");
  EXPECT_EQ(out["quantization_config"]["activation_scheme"], "dynamic");
  EXPECT_EQ(out["quantization_config"]["weight_block_size"], Json::array({128, 128}));
  EXPECT_EQ(out["quantization_config"]["modules_to_not_convert"], Json::array({"lm_head"}));
  out.erase("quantization_config");
  EXPECT_EQ(out, source);
}

TEST_F(QuantizeCheckpoint, CompressedTensorsHasOnlyKeysThatReadersAccept) {
  make();
  ASSERT_TRUE(quantize_to("out", {.plan = {.scheme = "fp8",
                                           .ignore = {"model.layers.0.mlp.down_proj"},
                                           .overrides = {{"o_proj", "int8"}}}})
                  .has_value());
  const Json config = read_config(folder_ / "out")["quantization_config"];
  EXPECT_EQ(config["format"], "mixed-precision");
  EXPECT_EQ(config["ignore"], Json::array({"model.layers.0.mlp.down_proj", "lm_head"}));
  ASSERT_EQ(config["config_groups"].size(), 2u);
  EXPECT_EQ(config["config_groups"]["group_0"]["targets"], Json::array({"Linear"}));
  EXPECT_EQ(config["config_groups"]["group_1"]["targets"],
            Json::array({"model.layers.0.self_attn.o_proj", "model.layers.1.self_attn.o_proj"}));
  EXPECT_EQ(config["config_groups"]["group_1"]["format"], "int-quantized");
  const std::set<std::string> allowed = {"num_bits",        "type",    "symmetric", "group_size", "strategy",
                                         "block_structure", "dynamic", "actorder",  "observer",   "observer_kwargs"};
  for (const auto& [name, group] : config["config_groups"].items()) {
    for (const std::string part : {"weights", "input_activations"})
      for (const auto& [key, value] : group[part].items()) EXPECT_TRUE(allowed.contains(key)) << key;
    for (const auto& [key, value] : group.items())
      EXPECT_TRUE(
          (std::set<std::string>{"targets", "format", "weights", "input_activations", "output_activations"}.contains(
              key)))
          << key;
  }
  const Checkpoint out = open_model(folder_ / "out");
  EXPECT_EQ(out.stored_plan().linear("model.layers.1.self_attn.o_proj").weight.element, ElementType::kInt8);
  EXPECT_EQ(out.stored_plan().linear("model.layers.0.mlp.down_proj").reason, "ignored: model.layers.0.mlp.down_proj");
  EXPECT_EQ(out.stored_plan().linear("model.layers.1.mlp.down_proj").weight.element, ElementType::kE4m3);
}

TEST_F(QuantizeCheckpoint, CompanionsAreCopiedAndStrangersAreNot) {
  make();
  for (const std::string name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
        "generation_config.json", "LICENSE", "merges.txt", "pytorch_model.bin", ".hidden.json", "notes.md"})
    std::ofstream(model_ / name) << (name == "generation_config.json" ? "{}" : "content of " + name);
  fs::create_directory(model_ / "onnx");
  const auto summary = quantize_to("out", {.plan = {.scheme = "int8"}});
  ASSERT_TRUE(summary.has_value()) << summary.error().message();
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_ / "out")) names.insert(entry.path().filename().string());
  EXPECT_EQ(names, (std::set<std::string>{"LICENSE", "chat_template.jinja", "config.json", "generation_config.json",
                                          "merges.txt", "model.safetensors", "special_tokens_map.json",
                                          "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(read_text_file(folder_ / "out" / "chat_template.jinja").value(), "content of chat_template.jinja");
}

TEST_F(QuantizeCheckpoint, LargeModelsBecomeShardsWithAnIndex) {
  make();
  ASSERT_TRUE(quantize_to("one", {.plan = {.scheme = "fp8"}}).has_value());
  ASSERT_TRUE(quantize_to("many", {.plan = {.scheme = "fp8"}, .threads = 2, .shard_bytes = 300'000}).has_value());
  const Checkpoint one = open_model(folder_ / "one"), many = open_model(folder_ / "many");
  const Json index =
      parse_json(read_text_file(folder_ / "many" / "model.safetensors.index.json").value(), "index").value();
  std::set<std::string> files;
  int64_t total = 0;
  ASSERT_EQ(many.tensors().entries().size(), one.tensors().entries().size());
  for (const TensorEntry& entry : one.tensors().entries()) {
    const TensorEntry* other = many.tensors().find(entry.name);
    ASSERT_NE(other, nullptr) << entry.name;
    EXPECT_TRUE(std::ranges::equal(other->plain->data, entry.plain->data)) << entry.name;
    EXPECT_EQ(index["weight_map"][entry.name].get<std::string>(), other->file.filename().string());
    files.insert(other->file.filename().string());
    total += entry.stored_bytes;
  }
  EXPECT_GT(files.size(), 3u);
  EXPECT_TRUE(files.contains("model-00001-of-0000" + std::to_string(files.size()) + ".safetensors"));
  EXPECT_EQ(index["metadata"]["total_size"].get<int64_t>(), total);
}

TEST_F(QuantizeCheckpoint, WiderSourcesWork) {
  for (const ElementType element : {ElementType::kF32, ElementType::kF16}) {
    make(element);
    const std::string name(element_name(element));
    const auto summary = quantize_to(name, {.plan = {.scheme = "fp8"}});
    ASSERT_TRUE(summary.has_value()) << summary.error().message();
    const Checkpoint source = open_model(model_), out = open_model(folder_ / name);
    const LinearModule module = source.config().linear_modules()[3];
    EXPECT_EQ(dequantize(out.linear(module.name)->view()),
              expected_values(source, module, out.stored_plan().linear(module.name).weight));
    EXPECT_EQ(out.tensors().find("model.embed_tokens.weight")->plain->element, element);
  }
}

TEST_F(QuantizeCheckpoint, ZerosStayZerosAndTinyRowsStayFinite) {
  const std::string down = "model.layers.0.mlp.down_proj.weight", q = "model.layers.0.self_attn.q_proj.weight";
  make(ElementType::kBf16, [&](const std::string& name, std::vector<float>& values, const Shape& shape) {
    if (name == down)
      for (int64_t r = 0; r < 128; ++r)
        for (int64_t c = 128; c < 256; ++c) values[static_cast<size_t>(r * shape[1] + c)] = 0.0f;
    if (name == q)
      for (int64_t c = 0; c < shape[1]; ++c) {
        values[static_cast<size_t>(5 * shape[1] + c)] = 0.0f;
        values[static_cast<size_t>(6 * shape[1] + c)] = c == 3 ? 1e-38f : 0.0f;
      }
    if (name.starts_with("model.layers.1.mlp.")) std::fill(values.begin(), values.end(), 0.0f);
  });
  for (const std::string scheme : {"fp8", "fp8-block", "fp8-block-ue8m0", "fp8-tensor", "int8"}) {
    const auto summary = quantize_to(scheme, {.plan = {.scheme = scheme}});
    ASSERT_TRUE(summary.has_value()) << summary.error().message();
    const Checkpoint out = open_model(folder_ / scheme);
    for (const LinearModule& module : out.config().linear_modules()) {
      const auto linear = out.linear(module.name);
      ASSERT_TRUE(linear.has_value()) << linear.error().message();
      for (const float scale : linear->scales)
        ASSERT_TRUE(std::isfinite(scale) && scale > 0) << scheme << " " << module.name;
      for (const float value : dequantize(linear->view()))
        ASSERT_TRUE(std::isfinite(value)) << scheme << " " << module.name;
      const std::string name = module.name + ".weight";
      if (name == q) {
        for (int64_t c = 0; c < module.cols; ++c) ASSERT_EQ(linear->view().at(5, c), 0.0f) << scheme;
      }
      if (name == q && (scheme == "fp8" || scheme == "int8")) {
        // The smallest scale is 2^-126: such a row keeps its size, not its digits.
        EXPECT_NEAR(linear->view().at(6, 3) / 1e-38f, 1.0f, 0.2f) << scheme;
      }
      if (name == down) {
        for (int64_t c = 128; c < 256; ++c) ASSERT_EQ(linear->view().at(77, c), 0.0f) << scheme;
      }
    }
    EXPECT_EQ(out.notes(), std::vector<std::string>{}) << "no NaN codes, no zero scales";
    EXPECT_TRUE(std::isfinite(summary->mean_error));
  }
}

TEST_F(QuantizeCheckpoint, PowerOfTwoScalesAreRoundedBeforeTheCodes) {
  make();
  const auto summary = quantize_to("out", {.plan = {.scheme = "fp8-block-ue8m0"}});
  ASSERT_TRUE(summary.has_value()) << summary.error().message();
  EXPECT_LT(summary->worst_error, 0.045) << "scales rounded alone would give about 38 %";
  const Checkpoint out = open_model(folder_ / "out");
  EXPECT_EQ(read_config(folder_ / "out")["quantization_config"]["scale_fmt"], "ue8m0");
  const auto linear = out.linear("model.layers.0.mlp.up_proj");
  ASSERT_TRUE(linear.has_value());
  for (const float scale : linear->scales) {
    int exponent = 0;
    EXPECT_EQ(std::frexp(scale, &exponent), 0.5f);
  }
}

TEST_F(QuantizeCheckpoint, NanAndInfinityAreFoundByRowAndColumn) {
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const std::string scheme : {"fp8", "fp8-block", "fp8-tensor", "int8"}) {
      fs::remove_all(model_);
      write_model(model_, kOddModel, ElementType::kF32,
                  [&](const std::string& name, std::vector<float>& values, const Shape& shape) {
                    if (name != "model.layers.1.mlp.gate_proj.weight") return;
                    values[static_cast<size_t>(150 * shape[1] + 17)] = bad;
                    values[static_cast<size_t>(151 * shape[1])] = NAN;
                  });
      const std::string error = error_of("out", {.plan = {.scheme = scheme}, .threads = 2});
      EXPECT_NE(error.find("model.layers.1.mlp.gate_proj.weight"), std::string::npos) << error;
      EXPECT_NE(error.find("row 150, column 17"), std::string::npos) << error;
      EXPECT_EQ(siblings(), std::set<std::string>{"model"}) << "something half-written stayed";
    }
  // A module that stays wide is copied as it is.
  EXPECT_EQ(error_of("out", {.plan = {.scheme = "fp8", .ignore = {"re:.*layers.1.mlp.gate_proj"}}}), "");
}

TEST_F(QuantizeCheckpoint, TiedHeadsGetNoSecondTable) {
  std::string tied(kOddModel);
  tied.replace(tied.find("\"tie_word_embeddings\": false"), 28, "\"tie_word_embeddings\": true");
  write_model(model_, tied);
  ASSERT_TRUE(quantize_to("out", {.plan = {.scheme = "fp8"}}).has_value());
  const Checkpoint out = open_model(folder_ / "out");
  EXPECT_EQ(out.tensors().find("lm_head.weight"), nullptr);
  EXPECT_EQ(out.tensors().find("model.embed_tokens.weight")->stored_type, "BF16");
  const std::string error = error_of("head", {.plan = {.scheme = "fp8", .overrides = {{"lm_head", "fp8"}}}});
  EXPECT_NE(error.find("embedding"), std::string::npos) << error;
}

TEST_F(QuantizeCheckpoint, AnUntiedHeadIsQuantizedWhenNamed) {
  make();
  ASSERT_TRUE(quantize_to("out", {.plan = {.scheme = "fp8", .overrides = {{"lm_head", "fp8"}}}}).has_value());
  const Checkpoint out = open_model(folder_ / "out");
  EXPECT_EQ(out.stored_plan().linear("lm_head").weight, weight_format(row_format(ElementType::kE4m3)));
  EXPECT_EQ(out.tensors().find("lm_head.weight")->stored_type, "F8_E4M3");
}

TEST_F(QuantizeCheckpoint, RequestsThatCannotBeMet) {
  make();
  struct Bad {
    QuantizeOptions options;
    std::string part;
  };
  for (const Bad& bad : {
           Bad{{.plan = {.scheme = "fp8"}, .dialect = "fp8"}, "use --dialect compressed-tensors"},
           Bad{{.plan = {.scheme = "int8"}, .dialect = "fp8"}, "use --dialect compressed-tensors"},
           Bad{{.plan = {.scheme = "fp8-block-ue8m0"}, .dialect = "compressed-tensors"}, "use --dialect fp8"},
           Bad{{.plan = {.scheme = "fp8-block", .overrides = {{"q_proj", "fp8-tensor"}}}, .dialect = "fp8"},
               "all its modules have the same format"},
           Bad{{.plan = {.scheme = "fp8-block-ue8m0", .overrides = {{"q_proj", "int8"}}}}, "E8M0"},
           Bad{{.plan = {.scheme = "fp8"}, .dialect = "gguf"}, "unknown checkpoint dialect"},
           Bad{{.plan = {.scheme = "fp8"}, .dialect = "gptq"}, "INT4 in groups"},
           Bad{{.plan = {.scheme = "mxfp4"}, .dialect = "modelopt"}, "use --dialect compressed-tensors"},
           Bad{{.plan = {.scheme = "nvfp4", .overrides = {{"q_proj", "mxfp8"}}}, .dialect = "modelopt"},
               "all its modules have the same format"},
           Bad{{.plan = {.scheme = "bf16"}}, "quantizes no weight"},
           Bad{{.plan = {.scheme = "fp8", .ignore = {"re:.*"}}}, "quantizes no weight"},
           Bad{{.plan = {.scheme = "q4_k"}}, "fp8-block"},
           Bad{{.plan = {.scheme = ""}}, "unknown quantization scheme"},
       }) {
    const std::string error = error_of("out", bad.options);
    EXPECT_NE(error.find(bad.part), std::string::npos) << bad.part << "\n" << error;
  }
  EXPECT_EQ(siblings(), std::set<std::string>{"model"});
}

TEST_F(QuantizeCheckpoint, RulesThatMatchNothingAndRaggedBlocksAreNoted) {
  make();
  const auto summary = quantize_to("out", {.plan = {.scheme = "fp8-block", .ignore = {"re:.*experts.*"}}});
  ASSERT_TRUE(summary.has_value());
  ASSERT_EQ(summary->notes.size(), 2u);
  EXPECT_NE(summary->notes[0].find("re:.*experts.*"), std::string::npos);
  EXPECT_NE(summary->notes[1].find("vLLM"), std::string::npos);
}

TEST_F(QuantizeCheckpoint, FusedLayersThatPartAreNoted) {
  make();
  const auto parted = quantize_to("parted", {.plan = {.scheme = "fp8", .overrides = {{"v_proj", "int8"}}}});
  ASSERT_TRUE(parted.has_value());
  ASSERT_EQ(parted->notes.size(), 1u);
  EXPECT_NE(parted->notes[0].find("model.layers.0.self_attn.v_proj"), std::string::npos);
  const auto whole = quantize_to("whole", {.plan = {.scheme = "fp8", .overrides = {{"o_proj", "int8"}}}});
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->notes, std::vector<std::string>{});
}

TEST_F(QuantizeCheckpoint, OutputsThatWouldDestroySomething) {
  make();
  const QuantizeOptions options{.plan = {.scheme = "fp8"}};
  EXPECT_NE(error_of("model", options), "");
  EXPECT_NE(error_of("model/", options), "");
  EXPECT_NE(error_of("model/inside", options), "");
  EXPECT_NE(error_of("no/such/parent", options), "");
  fs::create_directory(folder_ / "full");
  std::ofstream(folder_ / "full" / "file") << "x";
  EXPECT_NE(error_of("full", options).find("not empty"), std::string::npos);
  std::ofstream(folder_ / "file") << "x";
  EXPECT_NE(error_of("file", options), "");
  fs::create_directory(folder_ / "empty");
  EXPECT_EQ(error_of("empty", options), "");
  EXPECT_EQ(open_model(model_).dialect(), "none");
}

TEST_F(QuantizeCheckpoint, QuantizedSourcesAreRefused) {
  make();
  ASSERT_TRUE(quantize_to("out", {.plan = {.scheme = "fp8"}}).has_value());
  const auto again = quantize_checkpoint(open_model(folder_ / "out"), folder_ / "twice", {.plan = {.scheme = "int8"}});
  ASSERT_FALSE(again.has_value());
  EXPECT_NE(again.error().what.find("already quantized"), std::string::npos);
  EXPECT_NE(again.error().found.find("compressed-tensors"), std::string::npos);
  const auto gguf =
      quantize_checkpoint(open_model(fs::path(OCTAVO_TEST_DATA) / "quantized" / "gguf_bf16" / "model.gguf"),
                          folder_ / "twice", {.plan = {.scheme = "int8"}});
  ASSERT_FALSE(gguf.has_value());
  EXPECT_NE(gguf.error().remedy.find("convert"), std::string::npos);
}

TEST_F(QuantizeCheckpoint, AFullDiskIsAnErrorAndLeavesNothing) {
  make();
  std::string error;
  {
    const FileSizeLimit limit(500'000);
    error = error_of("out", {.plan = {.scheme = "fp8"}, .threads = 2});
  }
  EXPECT_NE(error.find("model.safetensors"), std::string::npos) << error;
  EXPECT_EQ(siblings(), std::set<std::string>{"model"});
}

}  // namespace
}  // namespace octavo
