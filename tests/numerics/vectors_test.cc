// Every codec against facts computed in exact rational arithmetic (tests/tools/number_vectors.py).
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <map>
#include <sstream>

#include "numerics/bits.h"
#include "numerics/e8m0.h"
#include "numerics/minifloat.h"

namespace octavo {
namespace {

struct Codec {
  std::function<float(uint32_t)> decode;
  std::function<uint32_t(float, bool)> encode;
};

template <class Format>
Codec codec() {
  return {[](uint32_t code) { return Format::decode(code); },
          [](float x, bool saturate) { return Format::encode(x, saturate); }};
}

const std::map<std::string, Codec>& codecs() {
  static const std::map<std::string, Codec> kCodecs = {{"e4m3", codec<E4m3>()},
                                                       {"e5m2", codec<E5m2>()},
                                                       {"e2m1", codec<E2m1>()},
                                                       {"bf16", codec<Bf16>()},
                                                       {"f16", codec<F16>()}};
  return kCodecs;
}

uint32_t hex(const std::string& text) {
  return static_cast<uint32_t>(std::stoul(text, nullptr, 16));
}

TEST(Vectors, AllHold) {
  std::ifstream file(std::string(OCTAVO_TEST_DATA) + "/numerics/vectors.txt");
  std::string line;
  std::map<std::string, int> counts;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind, format, a, b, c;
    words >> kind >> format >> a >> b >> c;
    ++counts[kind + " " + format];
    if (kind == "decode") {
      const float value = codecs().at(format).decode(hex(a));
      if (b == "nan")
        EXPECT_TRUE(is_nan(value)) << line;
      else
        EXPECT_EQ(float_bits(value), hex(b)) << line;
    } else if (kind == "encode") {
      EXPECT_EQ(codecs().at(format).encode(bits_float(hex(a)), false), hex(b)) << line;
      EXPECT_EQ(codecs().at(format).encode(bits_float(hex(a)), true), hex(c)) << line;
    } else {
      ASSERT_EQ(kind, "round_up");
      EXPECT_EQ(E8m0::encode_round_up(bits_float(hex(a))), hex(b)) << line;
    }
  }
  EXPECT_EQ(counts["decode e4m3"], 256);
  EXPECT_EQ(counts["decode e5m2"], 256);
  EXPECT_EQ(counts["decode e2m1"], 16);
  for (const std::string name : {"encode e4m3", "encode e5m2"}) EXPECT_GT(counts[name], 700);
  for (const std::string name : {"encode e2m1", "encode bf16", "encode f16", "round_up e8m0"})
    EXPECT_GT(counts[name], 30) << name;
}

}  // namespace
}  // namespace octavo
