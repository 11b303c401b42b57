#include "checkpoint/packed_layout.h"

#include <cstring>

namespace octavo {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

uint32_t word_at(const std::byte* packed, int64_t i) {
  uint32_t word;
  std::memcpy(&word, packed + i * 4, 4);
  return word;
}

// Code number `slot` of a word, lowest bits first.
int code_in(uint32_t word, int slot, int bits) {
  return static_cast<int>(word >> (slot * bits) & ((1u << bits) - 1));
}

// Adds an unsigned code to a word that has none at this slot.
void add_code(std::byte* packed, int64_t word, int slot, int bits, int code) {
  const uint32_t value = word_at(packed, word) | static_cast<uint32_t>(code) << (slot * bits);
  std::memcpy(packed + word * 4, &value, 4);
}

// An unsigned code as two's complement: the offset 2^(bits - 1) is the upper bit flipped.
void store_signed(std::byte* row, int64_t col, int code, int bits) {
  store_integer(bits == 4 ? ElementType::kInt4 : ElementType::kInt8, row, static_cast<size_t>(col),
                code - (1 << (bits - 1)));
}

Shape no_zeros(int64_t, int64_t, int) {
  return {};
}

// --- words along each row: compressed-tensors ---
Shape row_words(int64_t rows, int64_t cols, int bits) {
  return {rows, ceil_div(cols * bits, 32)};
}
Shape row_words_logical(const Shape& packed, int bits) {
  return {packed[0], packed[1] * 32 / bits};
}
Shape zeros_along_out(int64_t rows, int64_t groups, int bits) {
  return {ceil_div(rows * bits, 32), groups};
}
void decode_row_words(const std::byte* packed, int64_t rows, int64_t cols, int bits, std::byte* codes) {
  const int64_t from = ceil_div(cols * bits, 32) * 4, to = ceil_div(cols * bits, 8);
  const std::byte flip{bits == 4 ? uint8_t{0x88} : uint8_t{0x80}};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < to; ++i) codes[r * to + i] = packed[r * from + i] ^ flip;
}
void encode_row_words(const std::byte* codes, int64_t rows, int64_t cols, int bits, std::byte* packed) {
  const int64_t to = ceil_div(cols * bits, 32) * 4, from = ceil_div(cols * bits, 8);
  const std::byte flip{bits == 4 ? uint8_t{0x88} : uint8_t{0x80}};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < from; ++i) packed[r * to + i] = codes[r * from + i] ^ flip;
}
void store_zero_along_out(std::byte* packed, int64_t row, int64_t group, int64_t, int64_t groups, int bits, int zero) {
  const int64_t in_word = 32 / bits;
  add_code(packed, row / in_word * groups + group, static_cast<int>(row % in_word), bits, zero);
}
int zero_along_out(const std::byte* packed, int64_t row, int64_t group, int64_t, int64_t groups, int bits) {
  const int64_t in_word = 32 / bits;
  return code_in(word_at(packed, row / in_word * groups + group), static_cast<int>(row % in_word), bits);
}

// --- two codes in a byte along each row ---
Shape row_nibbles(int64_t rows, int64_t cols, int) {
  return {rows, ceil_div(cols, 2)};
}
Shape row_nibbles_logical(const Shape& packed, int) {
  return {packed[0], packed[1] * 2};
}

// --- two outputs in a byte: ModelOpt's INT4 ---
Shape out_nibbles(int64_t rows, int64_t cols, int) {
  return {ceil_div(rows, 2), cols};
}
Shape out_nibbles_logical(const Shape& packed, int) {
  return {packed[0] * 2, packed[1]};
}
void decode_out_nibbles(const std::byte* packed, int64_t rows, int64_t cols, int, std::byte* codes) {
  const int64_t row_bytes = ceil_div(cols, 2);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const int byte = std::to_integer<int>(packed[r / 2 * cols + c]);
      store_integer(ElementType::kInt4, codes + r * row_bytes, static_cast<size_t>(c), byte >> (4 * (r % 2)));
    }
}

// --- GPTQ: [in, out], words along the inputs; zero points along the outputs ---
Shape gptq_weight(int64_t rows, int64_t cols, int bits) {
  return {ceil_div(cols * bits, 32), rows};
}
Shape gptq_logical(const Shape& packed, int bits) {
  return {packed[1], packed[0] * 32 / bits};
}
Shape gptq_zeros(int64_t rows, int64_t groups, int bits) {
  return {groups, ceil_div(rows * bits, 32)};
}
void decode_gptq(const std::byte* packed, int64_t rows, int64_t cols, int bits, std::byte* codes) {
  const int64_t in_word = 32 / bits, row_bytes = ceil_div(cols * bits, 8);
  for (int64_t word = 0; word * in_word < cols; ++word)
    for (int64_t r = 0; r < rows; ++r) {
      const uint32_t value = word_at(packed, word * rows + r);
      for (int64_t c = word * in_word, slot = 0; slot < in_word && c < cols; ++c, ++slot)
        store_signed(codes + r * row_bytes, c, code_in(value, static_cast<int>(slot), bits), bits);
    }
}
void encode_gptq(const std::byte* codes, int64_t rows, int64_t cols, int bits, std::byte* packed) {
  const int64_t in_word = 32 / bits, row_bytes = ceil_div(cols * bits, 8);
  const ElementType element = bits == 4 ? ElementType::kInt4 : ElementType::kInt8;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const int code = static_cast<int>(load_element(element, codes + r * row_bytes, static_cast<size_t>(c)));
      add_code(packed, c / in_word * rows + r, static_cast<int>(c % in_word), bits, code + (1 << (bits - 1)));
    }
}
void store_gptq_zero(std::byte* packed, int64_t row, int64_t group, int64_t rows, int64_t, int bits, int zero) {
  const int64_t in_word = 32 / bits, words = ceil_div(rows, in_word);
  add_code(packed, group * words + row / in_word, static_cast<int>(row % in_word), bits, zero);
}
int gptq_zero(const std::byte* packed, int64_t row, int64_t group, int64_t rows, int64_t, int bits) {
  const int64_t in_word = 32 / bits, words = ceil_div(rows, in_word);
  return code_in(word_at(packed, group * words + row / in_word), static_cast<int>(row % in_word), bits);
}

// --- AWQ: [in, out], eight outputs in a word in the order 0, 2, 4, 6, 1, 3, 5, 7 ---
constexpr int kAwqSlot[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // of each output

Shape awq_shape(int64_t rows, int64_t cols, int) {
  return {cols, ceil_div(rows, 8)};
}
Shape awq_logical(const Shape& packed, int) {
  return {packed[1] * 8, packed[0]};
}
Shape awq_zeros(int64_t rows, int64_t groups, int) {
  return {groups, ceil_div(rows, 8)};
}
int awq_zero(const std::byte* packed, int64_t row, int64_t group, int64_t rows, int64_t, int bits) {
  return code_in(word_at(packed, group * ceil_div(rows, 8) + row / 8), kAwqSlot[row % 8], bits);
}
void decode_awq(const std::byte* packed, int64_t rows, int64_t cols, int bits, std::byte* codes) {
  const int64_t row_bytes = ceil_div(cols, 2);
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t r = 0; r < rows; ++r)
      store_signed(codes + r * row_bytes, c, awq_zero(packed, r, c, rows, cols, bits), bits);
}

// --- gpt-oss: [experts, out, blocks, 16] ---
Shape expert_blocks_logical(const Shape& packed, int) {
  return packed.size() == 4 ? Shape{packed[0] * packed[1], packed[2] * packed[3] * 2} : Shape{};
}

}  // namespace

const PackedLayout kWordsAlongRows{.name = "words along the rows",
                                   .weight = ".weight_packed",
                                   .scale = ".weight_scale",
                                   .zeros = ".weight_zero_point",
                                   .groups = ".weight_g_idx",
                                   .word = ElementType::kInt32,
                                   .weight_shape = row_words,
                                   .zeros_shape = zeros_along_out,
                                   .logical_shape = row_words_logical,
                                   .decode = decode_row_words,
                                   .zero = zero_along_out,
                                   .encode = encode_row_words,
                                   .store_zero = store_zero_along_out};
const PackedLayout kNvfp4Divisor{.name = "NVFP4 under a divisor",
                                 .weight = ".weight_packed",
                                 .scale = ".weight_scale",
                                 .outer = ".weight_global_scale",
                                 .word = ElementType::kUint8,
                                 .outer_divides = true,
                                 .weight_shape = row_nibbles,
                                 .zeros_shape = no_zeros,
                                 .logical_shape = row_nibbles_logical};
const PackedLayout kMxfp4Bytes{.name = "MXFP4",
                               .weight = ".weight_packed",
                               .scale = ".weight_scale",
                               .word = ElementType::kUint8,
                               .weight_shape = row_nibbles,
                               .zeros_shape = no_zeros,
                               .logical_shape = row_nibbles_logical};
const PackedLayout kNvfp4Factor{.name = "NVFP4 under a factor",
                                .weight = ".weight",
                                .scale = ".weight_scale",
                                .outer = ".weight_scale_2",
                                .word = ElementType::kUint8,
                                .weight_shape = row_nibbles,
                                .zeros_shape = no_zeros,
                                .logical_shape = row_nibbles_logical};
const PackedLayout kNibblesAlongOut{.name = "two outputs in a byte",
                                    .weight = ".weight",
                                    .scale = ".weight_scale",
                                    .input_factor = ".pre_quant_scale",
                                    .word = ElementType::kUint8,
                                    .weight_shape = out_nibbles,
                                    .zeros_shape = no_zeros,
                                    .logical_shape = out_nibbles_logical,
                                    .decode = decode_out_nibbles};
const PackedLayout kGptqWords{.name = "GPTQ words",
                              .weight = ".qweight",
                              .scale = ".scales",
                              .zeros = ".qzeros",
                              .groups = ".g_idx",
                              .word = ElementType::kInt32,
                              .transposed = true,
                              .weight_shape = gptq_weight,
                              .zeros_shape = gptq_zeros,
                              .logical_shape = gptq_logical,
                              .decode = decode_gptq,
                              .zero = gptq_zero,
                              .encode = encode_gptq,
                              .store_zero = store_gptq_zero};
const PackedLayout kAwqWords{.name = "AWQ words",
                             .weight = ".qweight",
                             .scale = ".scales",
                             .zeros = ".qzeros",
                             .word = ElementType::kInt32,
                             .transposed = true,
                             .weight_shape = awq_shape,
                             .zeros_shape = awq_zeros,
                             .logical_shape = awq_logical,
                             .decode = decode_awq,
                             .zero = awq_zero};
const PackedLayout kMxfp4Experts{.name = "MXFP4 experts",
                                 .weight = "_blocks",
                                 .scale = "_scales",
                                 .word = ElementType::kUint8,
                                 .weight_shape = row_nibbles,
                                 .zeros_shape = no_zeros,
                                 .logical_shape = expert_blocks_logical};

std::span<const PackedLayout* const> packed_layouts() {
  static constexpr const PackedLayout* kLayouts[] = {&kWordsAlongRows,  &kNvfp4Divisor, &kMxfp4Bytes,
                                                     &kNvfp4Factor,     &kGptqWords,    &kAwqWords,
                                                     &kNibblesAlongOut, &kMxfp4Experts};
  return kLayouts;
}

}  // namespace octavo
