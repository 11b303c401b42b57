// Detection of instruction sets, measured rates, and the choice of a level and of linear rows.
#include "kernels/isa.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <set>
#include <sstream>

#include "kernels/linear.h"
#include "kernels/roofline.h"

namespace octavo {
namespace {

constexpr Isa kAll[] = {Isa::kReference, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

// The flags of the first core as the kernel reports them.
std::set<std::string> kernel_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

TEST(Isa, AgreesWithTheOperatingSystem) {
  const std::set<std::string> flags = kernel_flags();
  ASSERT_FALSE(flags.empty());
  const CpuFeatures& cpu = cpu_features();
  const auto has = [&](const char* flag) { return flags.count(flag) > 0; };
  EXPECT_EQ(cpu.avx2, has("avx2"));
  EXPECT_EQ(cpu.fma, has("fma"));
  EXPECT_EQ(cpu.f16c, has("f16c"));
  EXPECT_EQ(cpu.avx512, has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl") && has("avx512cd"));
  EXPECT_EQ(cpu.avx512_vbmi, has("avx512vbmi"));
  EXPECT_EQ(cpu.avx512_vnni, has("avx512_vnni"));
  EXPECT_EQ(cpu.avx512_bf16, has("avx512_bf16"));
  EXPECT_EQ(cpu.avx_vnni, has("avx_vnni"));
  EXPECT_EQ(cpu.amx, has("amx_tile"));
  EXPECT_FALSE(cpu.model.empty());
}

TEST(Isa, NamesGoBothWays) {
  for (const Isa isa : kAll) {
    const Result<Isa> back = isa_from_name(isa_name(isa));
    ASSERT_TRUE(back.has_value());
    EXPECT_EQ(*back, isa);
  }
  const Result<Isa> unknown = isa_from_name("avx1024");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().found, "avx1024");
}

TEST(Isa, ALevelNeedsAllBelow) {
  EXPECT_TRUE(isa_available(Isa::kReference));
  for (size_t i = 1; i < std::size(kAll); ++i) EXPECT_LE(isa_available(kAll[i]), isa_available(kAll[i - 1]));
}

TEST(Isa, RatesAreThereForWhatIsAvailable) {
  const auto start = std::chrono::steady_clock::now();
  const InstructionRates& rates = instruction_rates();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(500));
  EXPECT_EQ(rates.fma_avx2 > 0, isa_available(Isa::kAvx2));
  EXPECT_EQ(rates.fma_avx512 > 0, isa_available(Isa::kAvx512));
  EXPECT_EQ(rates.int8_dot > 0, isa_available(Isa::kAvx512));
  EXPECT_EQ(rates.bf16_dot > 0, isa_available(Isa::kAvx512Bf16));
  EXPECT_LT(rates.fma_avx2, 1000);  // 8 lanes x 2 units x 6 GHz is 96
  EXPECT_LT(rates.int8_dot, 10000);
}

TEST(Isa, TheBestLevelIsTheFastestThatIsThere) {
  const Isa best = best_isa();
  EXPECT_TRUE(isa_available(best));
  EXPECT_EQ(best, best_isa());
  const InstructionRates& rates = instruction_rates();
  EXPECT_EQ(best == Isa::kAvx512Bf16, rates.bf16_dot > 1.2 * rates.fma_avx512);
}

TEST(Roofline, HasAFigureForEachInstructionThatIsThere) {
  ThreadPool pool(1);
  const AlignedBytes memory[] = {AlignedBytes(size_t{16} << 20), AlignedBytes(100)};
  const std::span<const std::byte> blocks[] = {{memory[0].data(), memory[0].size()}, {memory[1].data(), 100}};
  const auto roofline = measure_roofline(pool, blocks, [] { return false; });
  ASSERT_TRUE(roofline.has_value());
  EXPECT_GT(roofline->read_gb_s, 0.1);
  EXPECT_GT(roofline->fma_gflops, 1);
  EXPECT_EQ(roofline->bf16_dot_gflops > 0, isa_available(Isa::kAvx512Bf16));
  EXPECT_EQ(roofline->int8_gops > 0, isa_available(Isa::kAvx512));
}

TEST(Roofline, EndsWhenItIsInterrupted) {
  ThreadPool pool(1);
  const AlignedBytes memory(4096);
  const std::span<const std::byte> block(memory.data(), memory.size());
  int pauses = 0;
  EXPECT_FALSE(measure_roofline(pool, {&block, 1}, [&] { return ++pauses == 3; }).has_value());
  EXPECT_EQ(pauses, 3);
}

TEST(ChooseLinear, TakesTheHighestRowThatAccepts) {
  const TensorFormat e4m3 = row_format(ElementType::kE4m3), int8 = row_format(ElementType::kInt8);
  const LinearKey fp8{.weight = e4m3, .activation = e4m3, .rows = 64, .cols = 64};
  const LinearKey w8a8{.weight = int8, .activation = int8, .rows = 64, .cols = 64};
  const LinearKey int4{.weight = row_format(ElementType::kInt4), .activation = int8, .rows = 64, .cols = 64};
  EXPECT_EQ(choose_linear(fp8, Isa::kReference).name, "reference");
  std::vector<std::string> why_not;
  EXPECT_EQ(choose_linear(int4, Isa::kAvx512Bf16, &why_not).name, "reference");
  EXPECT_FALSE(isa_available(Isa::kAvx2) && why_not.empty());
  if (isa_available(Isa::kAvx2)) {
    EXPECT_EQ(choose_linear(fp8, Isa::kAvx2).name, "avx2/fma");
    EXPECT_EQ(choose_linear(w8a8, Isa::kAvx2).name, "avx2/int8");
  }
  if (isa_available(Isa::kAvx512)) {
    EXPECT_EQ(choose_linear(fp8, Isa::kAvx512).name, "avx512/fma");
    EXPECT_EQ(choose_linear(w8a8, Isa::kAvx512Bf16).name, "avx512/vnni");
  }
  if (isa_available(Isa::kAvx512Bf16)) {
    EXPECT_EQ(choose_linear(fp8, Isa::kAvx512Bf16).name, "avx512_bf16/dot");
  }
}

}  // namespace
}  // namespace octavo
