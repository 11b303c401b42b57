// GGUF files: block decoders against vectors of ggml, tensors under hub names, refusals of damaged files.
#include "checkpoint/gguf.h"

#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/container_support.h"
#include "checkpoint/safetensors.h"

namespace octavo {
namespace {

// What a Llama of two layers says of itself.
GgufBuilder tiny_llama() {
  GgufBuilder gguf;
  gguf.string("general.architecture", "llama").u32("llama.context_length", 512).u32("llama.embedding_length", 8);
  gguf.u32("llama.block_count", 1).u32("llama.feed_forward_length", 4).u32("llama.attention.head_count", 2);
  gguf.u32("llama.attention.head_count_kv", 1).f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  gguf.f32("llama.rope.freq_base", 500000.0f);
  return gguf;
}

std::vector<float> counted(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  return values;
}

Result<Gguf> open_bytes(const TestFolder& folder, const std::string& bytes) {
  write_bytes(folder / "m.gguf", bytes);
  return Gguf::open(folder / "m.gguf");
}

void expect_refused(const std::string& bytes, const std::string& reason) {
  const TestFolder folder;
  const auto gguf = open_bytes(folder, bytes);
  ASSERT_FALSE(gguf) << "accepted, expected: " << reason;
  const std::string message = gguf.error().message();
  EXPECT_NE(message.find(reason), std::string::npos) << message;
  EXPECT_NE(gguf.error().where.find("m.gguf"), std::string::npos) << message;
}

// Blocks of bytes (37 i + 11) mod 256 with d = 1 and m = -1, as decoded by ggml: first eight, last three, sum.
TEST(GgmlBlocks, AgreeWithGgml) {
  const struct {
    uint32_t id;
    std::string start;  // bytes that replace the first ones
    std::vector<float> first, last;
    float sum;
    int at = 0;  // of `start`
  } rows[] = {
      {2, raw<uint16_t>(0x3C00), {-3, 2, 7, -4, 1, 6, -5, 0}, {-5, -3, 0}, -21},
      {3, raw<uint32_t>(0xBC003C00), {14, 3, 8, 13, 2, 7, 12, 1}, {7, 9, 11}, 213},
      {6, raw<uint16_t>(0x3C00), {9, -2, 3, -8, 13, -14, 7, -4}, {-4, 14, 1}, 15},
      {7, raw<uint32_t>(0xBC003C00), {18, 23, 28, 17, 22, 11, 0, 21}, {0, 2, 4}, 473},
      {8, raw<uint16_t>(0x3C00), {85, 122, -97, -60, -23, 14, 51, 88}, {-122, -85, -48}, -176},
      {20, raw<uint16_t>(0x3C00), {-35, 25, 113, -49, 13, 89, -65, 1}, {-65, -35, 1}, -257},
      {10, raw<uint32_t>(0x38003C00), {33, 0, 11, 22, 33, 0, 11, 22}, {-1.5f, 4.5f, 4.5f}, 2059, 80},
      {11, raw<uint16_t>(0x3C00), {81, -108, 27, -54, 81, -108, 27, -54}, {-42, -28, 42}, 958, 108},
      {12,
       raw<uint32_t>(0x38003C00),
       {315.5f, -25.5f, 129.5f, 284.5f, 439.5f, 98.5f, 253.5f, 408.5f},
       {18.5f, 36.5f, 48.5f},
       54440},
      {13,
       raw<uint32_t>(0x38003C00),
       {811.5f, -25.5f, 625.5f, 284.5f, 935.5f, 98.5f, 749.5f, 408.5f},
       {78.5f, 96.5f, 108.5f},
       116216},
      {14, raw<uint16_t>(0x3C00), {-1431, 1696, 583, -530, -1643, 1484, 371, -742}, {150, -40, -60}, 4612, 208},
  };
  for (const auto& row : rows) {
    const GgmlType* type = find_ggml_type(row.id);
    ASSERT_NE(type, nullptr);
    SCOPED_TRACE(std::string(type->name));
    std::string block(static_cast<size_t>(type->block_bytes), '\0');
    for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<char>(37 * i + 11);
    block.replace(static_cast<size_t>(row.at), row.start.size(), row.start);
    std::vector<float> out(static_cast<size_t>(type->block_elements));
    type->decode(std::as_bytes(std::span(block)).data(), out.data());
    EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 8), row.first);
    EXPECT_EQ(std::vector<float>(out.end() - 3, out.end()), row.last);
    float sum = 0;
    for (const float v : out) sum += v;
    EXPECT_EQ(sum, row.sum);
  }
}

// ggml's own encoding of x_i = i / 4 - 4.
TEST(GgmlBlocks, RampEncodedByGgml) {
  const auto unhex = [](const std::string& hex) {
    std::string bytes;
    for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return bytes;
  };
  const auto check = [&](uint32_t id, const std::string& hex, float tolerance) {
    const std::string block = unhex(hex);
    std::vector<float> out(32);
    find_ggml_type(id)->decode(std::as_bytes(std::span(block)).data(), out.data());
    for (int i = 0; i < 32; ++i)
      EXPECT_NEAR(out[static_cast<size_t>(i)], static_cast<float>(i) / 4 - 4, tolerance) << i;
  };
  check(8,
        "082881899199a1a9b1b9c0c8d0d8e0e8f0f80008101820283038404"
        "74f575f676f77",
        0.017f);
  check(2,
        "00388091"
        "91a2a2b3b3c4c4d5d5e6e6f7f7f8",
        0.26f);
}

TEST(GgmlBlocks, UnknownTypesHaveNoDecoder) {
  EXPECT_EQ(find_ggml_type(9), nullptr);
  EXPECT_EQ(find_ggml_type(18), nullptr);
  EXPECT_EQ(find_ggml_type(4), nullptr);
}

// Every supported type against what an independent decoder made of the same file, in the file's row order.
TEST(Gguf, GoldenFilesDecodeExactly) {
  for (const char* type :
       {"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k_m", "q5_k", "iq4_xs"}) {
    SCOPED_TRACE(type);
    const auto folder = kTestData / "quantized" / (std::string("gguf_") + type);
    const auto golden = open_safetensors(folder / "golden.safetensors");
    ASSERT_TRUE(golden) << golden.error().message();
    const auto gguf = Gguf::open(folder / "model.gguf");
    ASSERT_TRUE(gguf) << gguf.error().message();
    int compared = 0;
    for (const Gguf::Tensor& tensor : gguf->tensors()) {
      const TensorEntry* expected = (*golden)->find("dequantized." + tensor.name);
      if (expected == nullptr) continue;
      ++compared;
      ASSERT_EQ(tensor.shape, expected->shape);
      const GgmlType& block = *find_ggml_type(tensor.type);
      const auto count = static_cast<size_t>(expected->plain->size());
      std::vector<float> want(count), got(count);
      ASSERT_TRUE((*golden)->read_f32(*expected, 0, expected->shape[0], want));
      for (size_t i = 0; i * static_cast<size_t>(block.block_elements) < count; ++i)
        block.decode(tensor.data.data() + i * static_cast<size_t>(block.block_bytes),
                     got.data() + i * static_cast<size_t>(block.block_elements));
      EXPECT_EQ(got, want) << tensor.name;
    }
    EXPECT_GE(compared, 1);
  }
}

// The row of a GGUF's q or k that holds row r of the hub's: pairs (i, i + half) of a head lie side by side in the file.
int64_t interleaved_row(int64_t r, int64_t head_dim) {
  const int64_t head = r / head_dim, within = r % head_dim, half = head_dim / 2;
  return head * head_dim + (within % half) * 2 + within / half;
}

TEST(Gguf, QueryAndKeyRowsComeInHubOrder) {
  for (const char* type : {"f32", "q4_0", "q5_1"}) {
    SCOPED_TRACE(type);
    const auto folder = kTestData / "quantized" / (std::string("gguf_") + type);
    const auto golden = open_safetensors(folder / "golden.safetensors");
    auto gguf = Gguf::open(folder / "model.gguf");
    const auto config = model_config_from_gguf(*gguf);
    ASSERT_TRUE(config) << config.error().message();
    const auto reader = open_gguf_tensors(std::move(*gguf), *config);
    ASSERT_TRUE(reader) << reader.error().message();
    const std::pair<const char*, const char*> names[] = {
        {"model.layers.0.self_attn.q_proj.weight", "dequantized.blk.0.attn_q.weight"},
        {"model.layers.0.self_attn.k_proj.weight", "dequantized.blk.0.attn_k.weight"},
        {"model.layers.0.mlp.down_proj.weight", "dequantized.blk.0.ffn_down.weight"}};
    for (const auto& [hub, file] : names) {
      const TensorEntry* entry = (*reader)->find(hub);
      ASSERT_NE(entry, nullptr) << hub;
      const bool rotated = std::string(hub).find("self_attn") != std::string::npos;
      EXPECT_EQ(entry->plain.has_value(), std::string(type) == "f32" && !rotated);
      const int64_t rows = entry->shape[0], cols = entry->shape[1];
      std::vector<float> all(static_cast<size_t>(rows * cols)), want(static_cast<size_t>(cols)), one(want.size());
      ASSERT_TRUE((*reader)->read_f32(*entry, 0, rows, all));
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t from = rotated ? interleaved_row(r, config->head_dim) : r;
        ASSERT_TRUE((*golden)->read_f32(*(*golden)->find(file), from, from + 1, want));
        ASSERT_TRUE((*reader)->read_f32(*entry, r, r + 1, one));
        ASSERT_EQ(one, want) << hub << " row " << r;
        ASSERT_TRUE(std::equal(want.begin(), want.end(), all.begin() + r * cols));
      }
      (*reader)->forget(*entry, 0, rows);
    }
  }
}

TEST(Gguf, BiasesAreReorderedForLlamaOnly) {
  for (const char* architecture : {"llama", "qwen2"}) {
    const TestFolder folder;
    GgufBuilder file = tiny_llama();
    file.values.clear(), file.num_values = 0;
    const std::string a = architecture;
    file.string("general.architecture", a).u32(a + ".context_length", 64).u32(a + ".embedding_length", 8);
    file.u32(a + ".block_count", 1).u32(a + ".feed_forward_length", 4).u32(a + ".attention.head_count", 2);
    file.floats("token_embd.weight", {8, 5}, counted(40)).floats("blk.0.attn_q.bias", {8}, counted(8));
    file.floats("blk.0.attn_v.bias", {8}, counted(8));
    auto gguf = open_bytes(folder, file.bytes());
    ASSERT_TRUE(gguf) << gguf.error().message();
    const auto config = model_config_from_gguf(*gguf);
    ASSERT_TRUE(config) << config.error().message();
    EXPECT_TRUE(config->qkv_bias);
    const auto reader = open_gguf_tensors(std::move(*gguf), *config);
    ASSERT_TRUE(reader) << reader.error().message();
    std::vector<float> q(8), v(8);
    ASSERT_TRUE((*reader)->read_f32(*(*reader)->find("model.layers.0.self_attn.q_proj.bias"), 0, 1, q));
    ASSERT_TRUE((*reader)->read_f32(*(*reader)->find("model.layers.0.self_attn.v_proj.bias"), 0, 1, v));
    EXPECT_EQ(v, counted(8));
    EXPECT_EQ(q, a == "llama" ? (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}) : counted(8));
  }
}

TEST(Gguf, Values) {
  const TestFolder folder;
  GgufBuilder file;
  file.value("u8", 0, "\x80")
      .value("i8", 1, "\x80")
      .value("u16", 2, raw<uint16_t>(65535))
      .value("i16", 3, raw<int16_t>(-2));
  file.u32("u32", 4000000000u).value("i32", 5, raw<int32_t>(-5)).f32("f32", 1.5f).value("yes", 7, "\1");
  file.string("text", "h\xC3\xA9").value("u64", 10, raw<uint64_t>(~0ull)).value("i64", 11, raw<int64_t>(-9));
  file.value("f64", 12, raw<double>(0.1));
  file.value("texts", 9, raw<uint32_t>(8) + raw<uint64_t>(2) + GgufBuilder::text("a") + GgufBuilder::text(""));
  file.value("ints", 9, raw<uint32_t>(5) + raw<uint64_t>(2) + raw<int32_t>(-1) + raw<int32_t>(7));
  const auto gguf = open_bytes(folder, file.bytes());
  ASSERT_TRUE(gguf) << gguf.error().message();
  EXPECT_EQ(gguf->integer("u8"), 128);
  EXPECT_EQ(gguf->integer("i8"), -128);
  EXPECT_EQ(gguf->integer("u16"), 65535);
  EXPECT_EQ(gguf->integer("i16"), -2);
  EXPECT_EQ(gguf->integer("u32"), 4000000000);
  EXPECT_EQ(gguf->integer("i32"), -5);
  EXPECT_EQ(gguf->number("f32"), 1.5);
  EXPECT_EQ(gguf->number("i32"), -5.0);
  EXPECT_EQ(gguf->integer("yes"), 1);
  EXPECT_EQ(gguf->text("text"), "h\xC3\xA9");
  EXPECT_EQ(gguf->integer("u64"), std::nullopt);  // does not fit
  EXPECT_EQ(gguf->number("f64"), 0.1);
  EXPECT_EQ(*gguf->texts("texts"), (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(*gguf->integers("ints"), (std::vector<int64_t>{-1, 7}));
  EXPECT_EQ(gguf->text("u8"), std::nullopt);
  EXPECT_EQ(gguf->find("absent"), nullptr);
}

TEST(Gguf, VersionsAndByteOrder) {
  GgufBuilder file = tiny_llama();
  const TestFolder folder;
  file.version = raw<uint32_t>(2);
  EXPECT_TRUE(open_bytes(folder, file.bytes()));
  file.version = raw<uint32_t>(1);
  expect_refused(file.bytes(), "version");
  file.version = raw<uint32_t>(0x03000000);
  expect_refused(file.bytes(), "big-endian");
  expect_refused("GGML" + file.bytes().substr(4), "not a GGUF file");
  expect_refused("", "not a GGUF file");
}

TEST(Gguf, AlignmentOfTheData) {
  GgufBuilder file = tiny_llama();
  file.u32("general.alignment", 64);
  file.floats("a", {4}, counted(4)).floats("b", {2}, {7, 8});
  const TestFolder folder;
  expect_refused(file.bytes(), "not where it should be");  // laid out in steps of 32
  for (const uint32_t bad : {0u, 3u, 48u, 1u << 31}) {
    GgufBuilder odd = tiny_llama();
    odd.u32("general.alignment", bad);
    expect_refused(odd.bytes(), "alignment");
  }
}

TEST(Gguf, DamagedFiles) {
  GgufBuilder good = tiny_llama();
  good.floats("a", {4, 2}, counted(8));
  const std::string bytes = good.bytes();
  const TestFolder folder;
  for (size_t size = 0; size < bytes.size(); size += 3)
    EXPECT_FALSE(open_bytes(folder, bytes.substr(0, size))) << "accepted the first " << size << " bytes";
  const auto with = [](auto change) {
    GgufBuilder file = tiny_llama();
    change(file);
    return file.bytes();
  };
  const std::string huge = raw<uint64_t>(uint64_t{1} << 62);
  expect_refused(with([](auto& f) { f.num_tensors = uint64_t{1} << 60; }), "promises more");
  expect_refused(with([](auto& f) { f.num_values = ~0ull; }), "promises more");
  expect_refused(with([&](auto& f) { f.value("s", 8, huge); }), "past the end");
  expect_refused(with([&](auto& f) { f.value("a", 9, raw<uint32_t>(4) + huge); }), "past the end");
  expect_refused(with([&](auto& f) { f.value("a", 9, raw<uint32_t>(9) + raw<uint64_t>(1)); }), "array of arrays");
  expect_refused(with([&](auto& f) { f.value("a", 13, "x"); }), "unknown value type");
  expect_refused(with([&](auto& f) { f.value("b", 7, "\2"); }), "neither 0 nor 1");
  expect_refused(with([&](auto& f) { f.u32("llama.block_count", 3); }), "twice");
  expect_refused(with([&](auto& f) { f.u32("", 3); }), "empty key");
  expect_refused(with([&](auto& f) { f.floats("x", {1}, {1}).floats("x", {1}, {1}); }), "twice");
  expect_refused(with([&](auto& f) { f.floats(std::string(64, 'n'), {1}, {1}); }), "name");
  expect_refused(with([&](auto& f) { f.floats("x", {1, 1, 1, 1, 1}, {1}); }), "dimensions");
  expect_refused(with([&](auto& f) { f.floats("x", {-4}, {1}); }), "not possible");
  expect_refused(with([&](auto& f) { f.floats("x", {int64_t{1} << 32, int64_t{1} << 32}, {1}); }), "not possible");
  expect_refused(with([&](auto& f) { f.floats("x", {int64_t{1} << 40}, {1}); }), "truncated");
  expect_refused(with([&](auto& f) { f.tensor("x", {33}, 2, std::string(36, 'x')); }), "not possible");
  expect_refused(with([&](auto& f) { f.value("split.count", 2, raw<uint16_t>(2)); }), "one part of several");
}

TEST(Gguf, UnsupportedTypeNamesTensorTypeAndTheSupportedOnes) {
  GgufBuilder file = tiny_llama();
  file.tensor("blk.0.ffn_up.weight", {256}, 16, std::string(66, 'x'));
  const TestFolder folder;
  const auto gguf = open_bytes(folder, file.bytes());
  ASSERT_FALSE(gguf);
  const std::string message = gguf.error().message();
  for (const char* part : {"blk.0.ffn_up.weight", "IQ2_XXS", "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

Result<ModelConfig> config_of(const GgufBuilder& file) {
  const TestFolder folder;
  auto gguf = open_bytes(folder, file.bytes());
  if (!gguf) return fail(gguf.error());
  return model_config_from_gguf(*gguf);
}

TEST(GgufConfig, Llama) {
  GgufBuilder file = tiny_llama();
  file.u32("tokenizer.ggml.bos_token_id", 1)
      .u32("tokenizer.ggml.eos_token_id", 2)
      .u32("tokenizer.ggml.eot_token_id", 3);
  file.floats("token_embd.weight", {8, 5}, counted(40));
  const auto config = config_of(file);
  ASSERT_TRUE(config) << config.error().message();
  ModelConfig want;
  want.model_type = "llama";
  want.architecture = "LlamaForCausalLM";
  want.vocab_size = 5, want.hidden_size = 8, want.intermediate_size = 4, want.num_layers = 1;
  want.num_heads = 2, want.num_kv_heads = 1, want.head_dim = 4, want.max_position = 512;
  want.rms_norm_eps = 1e-5f;
  want.tied_embeddings = true;
  want.sliding_window = {0};
  want.rope.theta = 500000;
  want.bos_token_id = 1;
  want.eos_token_ids = {2, 3};
  EXPECT_EQ(*config, want);
}

TEST(GgufConfig, ScaledRope) {
  const auto with = [](auto change) {
    GgufBuilder file = tiny_llama();
    file.floats("token_embd.weight", {8, 5}, counted(40));
    change(file);
    return config_of(file);
  };
  const auto linear =
      with([](auto& f) { f.string("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4); });
  ASSERT_TRUE(linear) << linear.error().message();
  EXPECT_EQ(linear->rope.type, RopeType::kLinear);
  EXPECT_EQ(linear->rope.factor, 4);
  const auto yarn = with([](auto& f) {
    f.string("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 4);
    f.u32("llama.rope.scaling.original_context_length", 128);
  });
  ASSERT_TRUE(yarn) << yarn.error().message();
  EXPECT_EQ(yarn->rope.type, RopeType::kYarn);
  EXPECT_EQ(yarn->rope.original_max_position, 128);
  EXPECT_FALSE(
      with([](auto& f) { f.string("llama.rope.scaling.type", "longrope").f32("llama.rope.scaling.factor", 4); }));
  EXPECT_FALSE(with([](auto& f) { f.u32("llama.rope.dimension_count", 2); }));
  EXPECT_FALSE(with([](auto& f) { f.u32("llama.expert_count", 8); }));
  EXPECT_FALSE(with([](auto& f) { f.u32("llama.attention.value_length", 2); }));
}

TEST(GgufConfig, Llama3ScalingIsFoundFromItsDivisors) {
  ModelConfig model;
  model.head_dim = 64;
  model.rope.theta = 500000;
  const RopeTable base = inverse_frequencies(model);
  model.rope.type = RopeType::kLlama3;
  model.rope.factor = 32, model.rope.low_freq_factor = 1, model.rope.high_freq_factor = 4;
  model.rope.original_max_position = 8192;
  const RopeTable scaled = inverse_frequencies(model);
  std::vector<float> divisors(32);
  for (size_t i = 0; i < 32; ++i) divisors[i] = base.inverse_frequencies[i] / scaled.inverse_frequencies[i];
  const auto config_with = [](const std::vector<float>& values) {
    GgufBuilder file = tiny_llama();
    file.u32("llama.attention.key_length", 64).u32("llama.attention.value_length", 64);
    file.floats("token_embd.weight", {8, 5}, counted(40)).floats("rope_freqs.weight", {32}, values);
    return config_of(file);
  };
  const auto config = config_with(divisors);
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->rope, model.rope);
  const auto none = config_with(std::vector<float>(32, 1.0f));
  ASSERT_TRUE(none);
  EXPECT_EQ(none->rope.type, RopeType::kDefault);
  divisors[16] *= 1.01f;
  const auto other = config_with(divisors);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message().find("rope_freqs.weight"), std::string::npos);
}

TEST(GgufConfig, UnsupportedArchitectureIsNamedWithTheSupportedOnes) {
  for (const char* name : {"gemma2", "gpt-oss", "deepseek2"}) {
    GgufBuilder file;
    file.string("general.architecture", name);
    const auto config = config_of(file);
    ASSERT_FALSE(config);
    const std::string message = config.error().message();
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(message.find("llama, qwen2, qwen3"), std::string::npos) << message;
  }
}

// A mixture of one sparse and one dense layer: 3 experts of 4 over 32 inputs, in blocks of Q8_0 for down.
GgufBuilder tiny_mixture(uint32_t gating = 1, uint32_t shared = 0, int64_t stacked = 3, uint32_t used = 2) {
  GgufBuilder gguf;
  gguf.string("general.architecture", "llama").u32("llama.context_length", 512).u32("llama.embedding_length", 32);
  gguf.u32("llama.block_count", 2).u32("llama.feed_forward_length", 64).u32("llama.attention.head_count", 2);
  gguf.u32("llama.attention.head_count_kv", 1).f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  gguf.u32("llama.expert_count", 3).u32("llama.expert_used_count", used).u32("llama.expert_gating_func", gating);
  gguf.u32("llama.expert_shared_count", shared);
  gguf.floats("token_embd.weight", {32, 5}, counted(32 * 5));
  gguf.floats("blk.0.ffn_gate_inp.weight", {32, 3}, counted(32 * 3));
  gguf.floats("blk.0.ffn_gate_exps.weight", {32, 64, stacked}, counted(static_cast<size_t>(32 * 64 * stacked)));
  gguf.floats("blk.0.ffn_up_exps.weight", {32, 64, stacked}, counted(static_cast<size_t>(32 * 64 * stacked)));
  std::string blocks;  // d = 1 and codes that count
  for (int64_t b = 0; b < 2 * 32 * stacked; ++b) {
    blocks += raw<uint16_t>(0x3C00);
    for (int64_t i = 0; i < 32; ++i) blocks += static_cast<char>((b + i) % 127);
  }
  gguf.tensor("blk.0.ffn_down_exps.weight", {64, 32, stacked}, 8, blocks);
  return gguf;
}

TEST(Gguf, ExpertsOfALayerAreTensorsOfTheirOwn) {
  const TestFolder folder;
  auto gguf = open_bytes(folder, tiny_mixture().bytes());
  ASSERT_TRUE(gguf) << gguf.error().message();
  const auto config = model_config_from_gguf(*gguf);
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->model_type, "mixtral");
  EXPECT_EQ(config->architecture, "MixtralForCausalLM");
  EXPECT_EQ(
      config->experts,
      (ExpertsConfig{.count = 3, .per_token = 2, .intermediate_size = 64, .normalize = true, .layers = {true, false}}));
  const auto tensors = open_gguf_tensors(std::move(*gguf), *config);
  ASSERT_TRUE(tensors) << tensors.error().message();
  const std::string moe = "model.layers.0.block_sparse_moe.";
  const TensorEntry* router = (*tensors)->find(moe + "gate.weight");
  ASSERT_NE(router, nullptr);
  EXPECT_EQ(router->shape, (Shape{3, 32}));
  for (int e = 0; e < 3; ++e) {
    const TensorEntry* gate = (*tensors)->find(fmt::format("{}experts.{}.w1.weight", moe, e));
    const TensorEntry* up = (*tensors)->find(fmt::format("{}experts.{}.w3.weight", moe, e));
    const TensorEntry* down = (*tensors)->find(fmt::format("{}experts.{}.w2.weight", moe, e));
    ASSERT_TRUE(gate != nullptr && up != nullptr && down != nullptr) << e;
    EXPECT_EQ(gate->shape, (Shape{64, 32}));
    EXPECT_EQ(gate->plain->at(0), static_cast<float>(e * 64 * 32));
    EXPECT_EQ(up->plain->at(64 * 32 - 1), static_cast<float>((e + 1) * 64 * 32 - 1));
    EXPECT_EQ(down->shape, (Shape{32, 64}));
    EXPECT_EQ(down->stored_bytes, 2 * 32 * 34);
    std::vector<float> rows(2 * 64);
    ASSERT_TRUE((*tensors)->read_f32(*down, 30, 32, rows));
    for (int64_t i = 0; i < 128; ++i)
      EXPECT_EQ(rows[static_cast<size_t>(i)], static_cast<float>((e * 64 + 60 + i / 32 + i % 32) % 127))
          << e << ", " << i;
    ASSERT_TRUE((*tensors)->code_format(*down).has_value());
    std::vector<std::byte> codes(64 * 32);
    std::vector<float> scales(64);
    (*tensors)->read_codes(*down, codes, scales);
    EXPECT_EQ(static_cast<int>(codes[0]), e * 64 % 127);
    EXPECT_EQ(scales, std::vector<float>(64, 1.0f));
  }
}

TEST(Gguf, OtherKindsOfMixturesAreRefused) {
  const auto error_of = [](const GgufBuilder& builder) {
    const TestFolder folder;
    auto gguf = open_bytes(folder, builder.bytes());
    if (!gguf) return "not opened: " + gguf.error().message();
    const auto config = model_config_from_gguf(*gguf);
    if (!config) return config.error().message();
    const auto tensors = open_gguf_tensors(std::move(*gguf), *config);
    return tensors ? std::string() : tensors.error().message();
  };
  EXPECT_EQ(error_of(tiny_mixture()), "");
  EXPECT_NE(error_of(tiny_mixture(2)).find("llama.expert_gating_func"), std::string::npos);
  EXPECT_NE(error_of(tiny_mixture(1, 1)).find("no shared experts"), std::string::npos);
  EXPECT_NE(error_of(tiny_mixture(1, 0, 2)).find("[3, outputs, inputs], none of them 0"), std::string::npos);
  EXPECT_NE(error_of(tiny_mixture(1, 0, 3, 4)).find("expert_used_count"), std::string::npos);
}

}  // namespace
}  // namespace octavo
