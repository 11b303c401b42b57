// Packed layouts against vectors worked out by hand, and what a damaged packed weight is answered with.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "checkpoint/dialect_support.h"
#include "checkpoint/packed_layout.h"

namespace octavo {
namespace {

const std::string kQ = "model.layers.0.self_attn.q_proj";

std::vector<std::byte> words(std::initializer_list<uint32_t> list) {
  std::vector<std::byte> bytes(list.size() * 4);
  std::memcpy(bytes.data(), list.begin(), bytes.size());
  return bytes;
}

std::vector<int> decoded(const PackedLayout& layout, const std::vector<std::byte>& packed, int64_t rows, int64_t cols,
                         int bits) {
  const TensorFormat format = row_format(bits == 4 ? ElementType::kInt4 : ElementType::kInt8);
  std::vector<std::byte> codes(static_cast<size_t>(format.element_bytes(rows, cols)));
  layout.decode(packed.data(), rows, cols, bits, codes.data());
  std::vector<int> values;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      values.push_back(static_cast<int>(
          load_element(format.element, codes.data() + r * format.element_bytes(1, cols), static_cast<size_t>(c))));
  return values;
}

TEST(PackedLayouts, KnownWords) {
  const std::vector<int> ramp = {-8, -7, -6, -5, -4, -3, -2, -1};
  EXPECT_EQ(decoded(kWordsAlongRows, words({0x76543210}), 1, 8, 4), ramp);
  EXPECT_EQ(decoded(kGptqWords, words({0x76543210}), 1, 8, 4), ramp);
  EXPECT_EQ(decoded(kAwqWords, words({0x75316420}), 8, 1, 4), ramp);
  EXPECT_EQ(decoded(kWordsAlongRows, words({0xFF80017F}), 1, 4, 8), (std::vector<int>{-1, -127, 0, 127}));
  // Two words of GPTQ are two outputs; a row of compressed-tensors is padded to whole words.
  EXPECT_EQ(decoded(kGptqWords, words({0x88888889, 0x9888888F}), 2, 8, 4),
            (std::vector<int>{1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 1}));
  EXPECT_EQ(decoded(kWordsAlongRows, words({0x8A9, 0x89B}), 2, 3, 4), (std::vector<int>{1, 2, 0, 3, 1, 0}));
  EXPECT_EQ(decoded(kNibblesAlongOut, {std::byte{0xF1}, std::byte{0x87}}, 2, 2, 4), (std::vector<int>{1, 7, -1, -8}));
}

TEST(PackedLayouts, ZeroPointsLieWhereTheirDialectPutsThem) {
  const auto packed = words({0x76543210, 0xFEDCBA98});
  EXPECT_EQ(kGptqWords.zero(packed.data(), 3, 1, 8, 2, 4), 0xB);
  EXPECT_EQ(kWordsAlongRows.zero(packed.data(), 3, 1, 8, 2, 4), 0xB);
  EXPECT_EQ(kAwqWords.zero(packed.data(), 1, 0, 8, 2, 4), 4);
  EXPECT_EQ(kAwqWords.zero(packed.data(), 7, 1, 8, 2, 4), 0xF);
  EXPECT_EQ(kGptqWords.zero(packed.data(), 2, 0, 4, 2, 8), 0x54);
}

// q_proj [256, 320] of the small model as GPTQ with groups of 64; the other modules stay wide.
struct Gptq {
  ModelConfig config = small_config();
  MemoryTensors tensors;

  Gptq() : tensors(small_tensors(config, ElementType::kBf16)) {
    tensors.remove(kQ + ".weight");
    integers("qweight", {40, 256}, [](int64_t i) { return 0x76543210u + static_cast<uint32_t>(i % 7); });
    integers("qzeros", {5, 32}, [](int64_t) { return 0x77777776u; });
    integers("g_idx", {320}, [](int64_t k) { return static_cast<uint32_t>(k / 64); });
    tensors.add(kQ + ".scales", ElementType::kF16, {5, 256}, [](int64_t i) { return 0.5 + double(i % 9); });
  }
  template <class Fill>
  void integers(const std::string& name, Shape shape, Fill fill) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    std::vector<std::byte> bytes(static_cast<size_t>(count) * 4);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t word = fill(i);
      std::memcpy(bytes.data() + i * 4, &word, 4);
    }
    tensors.add_bytes(kQ + "." + name, ElementType::kInt32, shape, std::move(bytes));
  }
  OneLinear read(const std::string& more = "") const {
    return read_one(R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64)" + more + "}}",
                    config, tensors, kQ);
  }
};

TEST(GptqWeight, WholeItIsRead) {
  const Gptq model;
  const OneLinear one = model.read();
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  const MatrixView view = one.linear->view();
  EXPECT_EQ(view.format.describe(), "int4 per 1x64, float16 scales, zero points");
  // Word (0, 3) is 0x76543213: code 3 - 8; scale (0, 3) is 3.5; the zero points of rows 0, 8, ... are one less.
  EXPECT_EQ(view.at(3, 0), (3 - 8) * 3.5f);
  EXPECT_EQ(view.at(8, 1), (1 - 7) * 8.5f);
  EXPECT_EQ(model.read(R"(, "checkpoint_format": "gptq_v2")").linear->view().at(3, 0), (3 - 7) * 3.5f);
}

TEST(GptqWeight, ColumnsOutOfOrderAreDequantized) {
  Gptq model;
  model.integers("g_idx", {320}, [](int64_t k) { return static_cast<uint32_t>(k % 5); });
  const OneLinear one = model.read();
  ASSERT_TRUE(one.linear.has_value()) << one.error();
  EXPECT_EQ(one.linear->format, plain_format(ElementType::kF32));
  EXPECT_EQ(one.linear->view().at(3, 2), (2 - 8) * (0.5f + float((2 * 256 + 3) % 9)));
}

TEST(GptqWeight, ExceptionsOfTheConfigAreHeeded) {
  const Gptq model;
  EXPECT_NE(model.read(R"(, "dynamic": {"-:.*q_proj": {}})").error(), "") << "left out, but not stored wide";
  EXPECT_NE(model.read(R"(, "dynamic": {"+:.*q_proj": {"group_size": 32}})").error().find("[10, 256]"),
            std::string::npos);
  EXPECT_TRUE(model.read(R"(, "dynamic": {"+:.*k_proj": {"group_size": 32}})").linear.has_value());
}

TEST(GptqWeight, ConfigsThatAreNotReadNameTheirKey) {
  const Gptq model;
  for (const auto& [more, part] : {std::pair<std::string, std::string>{R"(, "checkpoint_format": "marlin")", "marlin"},
                                   {R"(, "dynamic": 3)", "dynamic"},
                                   {R"(, "dynamic": {"+:[": {}})", "["}})
    EXPECT_NE(model.read(more).error().find(part), std::string::npos) << more;
  for (const auto& [json, part] :
       {std::pair<std::string, std::string>{R"({"quant_method": "gptq", "bits": 3})", "bits"},
        {R"({"quant_method": "gptq", "group_size": 0})", "group_size"},
        {R"({"quant_method": "awq", "version": "gemv"})", "gemv"},
        {R"({"quant_method": "modelopt", "quant_algo": "FP5"})", "FP5"},
        {R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})", "quantized_layers"},
        {R"({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"})", "kv_cache"}})
    EXPECT_NE(read_one(R"({"quantization_config": )" + json + "}", model.config, model.tensors, kQ).error().find(part),
              std::string::npos)
        << json;
}

TEST(GptqWeight, EveryDamageNamesItsTensor) {
  struct Damage {
    std::string tensor, part;
    std::function<void(Gptq&)> make;
  };
  const std::vector<Damage> damages = {
      {"qweight", "[40, 256]",
       [](auto& t) {
         t.integers("qweight", {40, 255}, [](int64_t) { return 0u; });
       }},
      {"qzeros", "[5, 32]",
       [](auto& t) {
         t.integers("qzeros", {32, 5}, [](int64_t) { return 0u; });
       }},
      {"qzeros", "no such tensor", [](auto& t) { t.tensors.remove(kQ + ".qzeros"); }},
      {"g_idx", "0 to 4", [](auto& t) { t.integers("g_idx", {320}, [](int64_t k) { return k == 9 ? 5u : 0u; }); }},
      {"g_idx", "-1", [](auto& t) { t.integers("g_idx", {320}, [](int64_t) { return 0xFFFFFFFFu; }); }},
      {"g_idx", "[320]", [](auto& t) { t.integers("g_idx", {319}, [](int64_t) { return 0u; }); }},
      {"scales", "no such tensor", [](auto& t) { t.tensors.remove(kQ + ".scales"); }},
      {"scales", "I32",
       [](auto& t) {
         t.integers("scales", {5, 256}, [](int64_t) { return 0u; });
       }},
      {"scales", "nan",
       [](auto& t) {
         t.tensors.add(kQ + ".scales", ElementType::kF16, {5, 256}, [](int64_t) { return NAN; });
       }},
      {"scales", "-1",
       [](auto& t) {
         t.tensors.add(kQ + ".scales", ElementType::kF16, {5, 256}, [](int64_t) { return -1; });
       }},
  };
  for (const Damage& damage : damages) {
    Gptq model;
    damage.make(model);
    const std::string error = model.read().error();
    EXPECT_NE(error.find(kQ + "." + damage.tensor), std::string::npos) << error;
    EXPECT_NE(error.find(damage.part), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace octavo
