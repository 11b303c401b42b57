// Every row of producers.inc against the reference, bit for bit.
#include "kernels/producers.h"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <cmath>
#include <limits>

#include "kernels/paged_cache.h"
#include "numerics/bits.h"
#include "numerics/integer.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

using test::PagedCache;

// The rows beside the reference that this machine can run; those that it cannot run must not be offered.
std::vector<const ProducerKernels*> rows_here() {
  std::vector<const ProducerKernels*> rows;
  for (const ProducerKernels* row : producer_kernels()) {
    if (!isa_available(row->isa)) {
      EXPECT_NE(&choose_producers(Isa::kAvx512Bf16), row) << row->name;
      EXPECT_NE(&choose_producers(row->isa), row) << row->name;
    } else if (row->isa != Isa::kReference) {
      rows.push_back(row);
    }
  }
  return rows;
}

const ProducerKernels& reference() {
  return choose_producers(Isa::kReference);
}

const std::vector<TensorFormat>& formats() {
  static const std::vector<TensorFormat> kFormats = {
      plain_format(ElementType::kF32),
      plain_format(ElementType::kBf16),
      row_format(ElementType::kE4m3),
      row_format(ElementType::kE5m2),
      row_format(ElementType::kInt8),
      block_format(ElementType::kE4m3, 1, 128),
      block_format(ElementType::kE4m3, 1, 128, ElementType::kE8m0),
      block_format(ElementType::kInt8, 1, 32),
      tensor_wide_format(ElementType::kE4m3),
      tensor_wide_format(ElementType::kInt8),
  };
  return kFormats;
}

std::vector<float> random_values(size_t count, uint64_t seed, float deviation = 1.0f) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& x : values) x = deviation * random.normal();
  return values;
}

const std::vector<float>& edge_values() {
  static const float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  static const std::vector<float> kValues = {
      0.0f,    -0.0f,   448.0f, 464.0f,        465.0f,   1000.0f,  -1000.0f, 256.0f,   300.0f,   304.0f,
      17.0f,   18.0f,   19.0f,  1.0625f,       1.1875f,  0x1p-9f,  0x1p-10f, 0x1p-6f,  0x1p-7f,  -0x1p-10f,
      1e-38f,  -1e-40f, 1e-45f, 3.4e38f,       -3.4e38f, 57344.0f, 61440.0f, 61441.0f, 126.5f,   127.5f,
      -127.5f, -0.4f,   -0.5f,  0x1.0002p-10f, kInf,     -kInf,    kNan,     -kNan,    0x1p-16f, 0x1p-17f};
  return kValues;
}

bool same_floats(const float* a, const float* b, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (float_bits(a[i]) != float_bits(b[i]) && !(is_nan(a[i]) && is_nan(b[i]))) return false;
  return true;
}

// Codes with their zero tails, and scales.
void expect_same(const Activation& want, const Activation& got, const std::string& what) {
  if (want.format.element == ElementType::kF32) {
    for (int64_t r = 0; r < want.rows; ++r)
      ASSERT_TRUE(same_floats(reinterpret_cast<const float*>(want.row(r)), reinterpret_cast<const float*>(got.row(r)),
                              static_cast<size_t>(want.code_stride / 4)))
          << what << " row " << r;
    return;
  }
  for (int64_t r = 0; r < want.rows; ++r)
    for (int64_t i = 0; i < want.code_stride; ++i)
      ASSERT_EQ(want.row(r)[i], got.row(r)[i]) << what << " row " << r << " byte " << i;
  const int64_t scales =
      want.format.scaled()
          ? want.format.granularity == Granularity::kTensor ? 1 : want.rows * std::max<int64_t>(1, want.scale_stride)
          : 0;
  ASSERT_TRUE(same_floats(want.scales, got.scales, static_cast<size_t>(scales))) << what;
}

std::string describe(const ProducerKernels& row, const TensorFormat& format, int64_t rows, int64_t cols) {
  return fmt::format("{} {} {}x{}", row.name, format.describe(), rows, cols);
}

struct Shape2 {
  int64_t rows, cols;
};

std::vector<Shape2> shapes() {
  std::vector<Shape2> all;
  for (int64_t cols = 1; cols <= 40; ++cols) all.push_back({2, cols});
  for (const int64_t cols : {63, 64, 65, 100, 127, 128, 129, 255, 320, 576, 1536}) all.push_back({3, cols});
  all.push_back({70, 576});
  return all;
}

TEST(Producers, RmsNormGivesTheBitsOfTheReference) {
  ThreadPool pool(2);
  for (const ProducerKernels* row : rows_here())
    for (const TensorFormat& format : formats())
      for (const auto& [rows, cols] : shapes()) {
        const auto x = random_values(static_cast<size_t>(rows * (cols + 3)), 7 + static_cast<uint64_t>(cols), 3.0f);
        const auto weight = random_values(static_cast<size_t>(cols), 11);
        ActivationBuffer a, b;
        RmsNormCall call{.input = x.data(), .input_stride = cols + 3, .weight = weight.data(), .eps = 1e-5f};
        call.output = a.resize(format, rows, cols, 0.01f);
        reference().rms_norm(call, pool);
        const Activation want = call.output;
        call.output = b.resize(format, rows, cols, 0.01f);
        row->rms_norm(call, pool);
        expect_same(want, call.output, describe(*row, format, rows, cols));
      }
}

TEST(Producers, SiluGateGivesTheBitsOfTheReference) {
  ThreadPool pool(2);
  for (const ProducerKernels* row : rows_here())
    for (const TensorFormat& format : formats())
      for (const auto& [rows, cols] : shapes()) {
        auto x = random_values(static_cast<size_t>(rows * 2 * cols), 13 + static_cast<uint64_t>(cols), 20.0f);
        for (size_t i = 0; i < x.size(); i += 17) x[i] *= 10.0f;  // both ends of the clamp
        ActivationBuffer a, b;
        SiluGateCall call{.input = x.data(), .input_stride = 2 * cols};
        call.output = a.resize(format, rows, cols, 0.05f);
        reference().silu_gate(call, pool);
        const Activation want = call.output;
        call.output = b.resize(format, rows, cols, 0.05f);
        row->silu_gate(call, pool);
        expect_same(want, call.output, describe(*row, format, rows, cols));
        for (call.hadamard = 1; cols % call.hadamard == 0; call.hadamard *= 2) {
          call.output = a.resize(format, rows, cols, 0.05f);
          reference().silu_gate(call, pool);
          const Activation transformed = call.output;
          call.output = b.resize(format, rows, cols, 0.05f);
          row->silu_gate(call, pool);
          expect_same(transformed, call.output,
                      fmt::format("{}, hadamard {}", describe(*row, format, rows, cols), call.hadamard));
        }
      }
}

TEST(Producers, QuantizeGivesTheBitsOfTheReferenceOnEdgeValues) {
  ThreadPool pool(1);
  const auto& edges = edge_values();
  for (const ProducerKernels* row : rows_here())
    for (const TensorFormat& format : formats())
      for (const auto& [rows, cols] : shapes()) {
        auto x = random_values(static_cast<size_t>(rows * cols), 17 + static_cast<uint64_t>(cols));
        // One row of ordinary values; the others hold edge values, one kind each, or a mixture, or zeros.
        for (int64_t r = 1; r < rows; ++r)
          for (int64_t c = 0; c < cols; ++c)
            x[static_cast<size_t>(r * cols + c)] =
                r % 3 == 2 ? (r % 2 == 0 ? 0.0f : -1e-39f) : edges[static_cast<size_t>(r * 5 + c) % edges.size()];
        ActivationBuffer a, b;
        QuantizeCall call{.input = x.data(), .input_stride = cols};
        call.output = a.resize(format, rows, cols, 1.0f);
        reference().quantize(call, pool);
        const Activation want = call.output;
        call.output = b.resize(format, rows, cols, 1.0f);
        row->quantize(call, pool);
        expect_same(want, call.output, describe(*row, format, rows, cols));
      }
}

TEST(Producers, ANonFiniteValuePoisonsItsGroupOnly) {
  ThreadPool pool(1);
  std::vector<float> x(256, 1.0f);
  x[130] = std::numeric_limits<float>::infinity();
  for (const ProducerKernels* row : producer_kernels()) {
    if (!isa_available(row->isa)) continue;
    ActivationBuffer buffer;
    QuantizeCall call{.input = x.data(), .input_stride = 256};
    call.output = buffer.resize(block_format(ElementType::kE4m3, 1, 128), 1, 256);
    row->quantize(call, pool);
    EXPECT_EQ(call.output.scales[0], 1.0f / 448.0f);
    EXPECT_TRUE(is_nan(call.output.scales[1]));
    for (int64_t c = 0; c < 256; ++c)
      EXPECT_EQ(call.output.row(0)[c], c < 128 ? std::byte{0x7E} : std::byte{0}) << row->name << " " << c;
  }
}

// Codes of many bit patterns at scale 1 against the scalar encoders, optionally with subnormals flushed by the caller.
void expect_encoders_exact(const ProducerKernels& row, bool flush) {
  constexpr int64_t kCols = 1 << 16;
  ThreadPool pool(1);
  Random random(23);
  for (const ElementType element : {ElementType::kE4m3, ElementType::kE5m2, ElementType::kInt8})
    for (int round = 0; round < 3; ++round) {
      std::vector<float> x(kCols);
      for (int64_t i = 0; i < kCols; ++i) {
        const auto bits = round == 0 ? static_cast<uint32_t>(i) << 16  // every BF16
                          : round == 1
                              ? static_cast<uint32_t>(random.next())
                              : float_bits(E4m3::decode(static_cast<uint32_t>(i % 256)) +
                                           E4m3::decode(static_cast<uint32_t>(i / 256)));  // ties and near ties
        x[static_cast<size_t>(i)] = bits_float(round == 2 ? float_bits(bits_float(bits) / 2) : bits);
      }
      ActivationBuffer buffer;
      QuantizeCall call{.input = x.data(), .input_stride = kCols};
      call.output = buffer.resize(tensor_wide_format(element), 1, kCols, 1.0f);
      const unsigned saved = _mm_getcsr();
      if (flush) _mm_setcsr(saved | 0x8040);
      row.quantize(call, pool);
      _mm_setcsr(saved);
      for (int64_t i = 0; i < kCols; ++i) {
        const float value = x[static_cast<size_t>(i)];
        const uint32_t want = element == ElementType::kE4m3   ? E4m3::encode(value)
                              : element == ElementType::kE5m2 ? E5m2::encode(value)
                                                              : static_cast<uint8_t>(Int8::encode(value));
        ASSERT_EQ(std::to_integer<uint32_t>(call.output.row(0)[i]), want)
            << row.name << " " << element_name(element) << " of bits " << float_bits(value);
      }
    }
}

TEST(Producers, EncodersAreExactOnEveryBf16AndOnTies) {
  for (const ProducerKernels* row : rows_here()) expect_encoders_exact(*row, false);
}

TEST(Producers, FlushToZeroFlagsOfTheCallerChangeNothing) {
  for (const ProducerKernels* row : rows_here()) expect_encoders_exact(*row, true);
  ThreadPool pool(1);
  std::vector<float> x(48);
  for (size_t i = 0; i < x.size(); ++i) x[i] = bits_float(static_cast<uint32_t>(100 + 37 * i));  // all subnormal
  for (const ProducerKernels* row : rows_here())
    for (const ElementType element : {ElementType::kE4m3, ElementType::kE5m2, ElementType::kInt8}) {
      ActivationBuffer a, b;
      QuantizeCall call{.input = x.data(), .input_stride = 48};
      call.output = a.resize(row_format(element), 1, 48);
      reference().quantize(call, pool);
      const Activation want = call.output;
      call.output = b.resize(row_format(element), 1, 48);
      const unsigned saved = _mm_getcsr();
      _mm_setcsr(saved | 0x8040);
      row->quantize(call, pool);
      EXPECT_EQ(_mm_getcsr() & 0x8040u, 0x8040u) << "the caller's flags come back";
      _mm_setcsr(saved);
      expect_same(want, call.output, describe(*row, row_format(element), 1, 48));
    }
}

TEST(Producers, EmbeddingWidensEveryPlainType) {
  const int64_t vocab = 5, cols = 19;
  const auto values = random_values(static_cast<size_t>(vocab * cols), 5);
  for (const ElementType element : {ElementType::kF32, ElementType::kBf16, ElementType::kF16}) {
    const auto bytes = static_cast<size_t>(element_bits(element) / 8);
    std::vector<std::byte> data(values.size() * bytes + 1);  // unaligned on purpose
    for (size_t i = 0; i < values.size(); ++i) store_element(element, data.data() + 1, i, values[i]);
    const TensorView table{element, {vocab, cols}, std::span<const std::byte>(data).subspan(1)};
    const std::vector<int32_t> ids = {4, 0, 4};
    std::vector<float> out(3 * 20, -1.0f);
    embed(table, ids, out.data(), 20);
    for (size_t r = 0; r < ids.size(); ++r)
      for (int64_t c = 0; c < cols; ++c)
        EXPECT_EQ(out[r * 20 + static_cast<size_t>(c)], table.at(ids[r] * cols + c)) << element_name(element);
    EXPECT_EQ(out[19], -1.0f);
  }
}

}  // namespace
}  // namespace octavo
