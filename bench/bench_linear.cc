// Linear layers beside the read bandwidth and the arithmetic peaks of the same run.
//   bench_linear [--threads N] [--row NAME] [--repeat R] [--cpu-time] [--shape NxK] [--rows M] [--rotate MB]
// Weights rotate through more memory than the caches hold (320 MB), as the layers of a model do. A figure is the median
// of R timings, its share that of the roofline at that M: the smaller of read bandwidth and peak. --cpu-time (one
// thread) counts only time on the core: for comparing kernels on a busy machine.
#include <fmt/format.h>
#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "kernels/bursts.h"
#include "kernels/linear.h"
#include "kernels/roofline.h"

namespace octavo {
namespace {

struct Options {
  int threads = 2, repeat = 7, rotate = 320;
  bool cpu_time = false;
  std::string_view row;
  int64_t n = 0, k = 0, m = 0;  // 0: all
};

struct Plan {
  const char* row;
  const char* name;
  TensorFormat weight, activation;
};

struct Shape {
  int64_t n, k;
};

double now(bool cpu_time) {
  if (!cpu_time) return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<Plan> plans() {
  const TensorFormat e4m3 = row_format(ElementType::kE4m3), int8 = row_format(ElementType::kInt8),
                     bf16 = plain_format(ElementType::kBf16), block = block_format(ElementType::kE4m3, 128, 128),
                     block_x = block_format(ElementType::kE4m3, 1, 128),
                     int4 = group_format(ElementType::kInt4, 128, ElementType::kF16),
                     int4_zp = group_format(ElementType::kInt4, 32, ElementType::kF16, true),
                     mxfp4 = group_format(ElementType::kE2m1, 32, ElementType::kE8m0),
                     nvfp4 = group_format(ElementType::kE2m1, 16, ElementType::kE4m3),
                     mxfp8 = group_format(ElementType::kE4m3, 32, ElementType::kE8m0);
  return {{"avx512/fma", "fp8", e4m3, e4m3},
          {"avx512/fma", "fp8-block", block, block_x},
          {"avx512/fma", "bf16", bf16, bf16},
          {"avx512/vnni", "int8", int8, int8},
          {"avx512_bf16/dot", "fp8", e4m3, e4m3},
          {"avx2/fma", "fp8", e4m3, e4m3},
          {"avx512/fma", "int4", int4, bf16},
          {"avx512_bf16/dot", "int4", int4, bf16},
          {"avx512/fma", "int4-g32-zp", int4_zp, bf16},
          {"avx512_bf16/dot", "int4-g32-zp", int4_zp, bf16},
          {"avx512/fma", "mxfp4", mxfp4, bf16},
          {"avx512_bf16/dot", "mxfp4", mxfp4, bf16},
          {"avx512/fma", "nvfp4", nvfp4, bf16},
          {"avx512_bf16/dot", "nvfp4", nvfp4, bf16},
          {"avx512/fma", "mxfp8", mxfp8, mxfp8},
          {"avx512_bf16/dot", "mxfp8", mxfp8, mxfp8},
          {"avx2/fma", "int4", int4, bf16},
          {"avx2/fma", "nvfp4", nvfp4, bf16},
          {"avx2/fma", "bf16", bf16, bf16},
          {"avx2/int8", "int8", int8, int8}};
}

// Random codes without NaN, scales around 0.01.
Matrix random_matrix(const TensorFormat& format, int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix out{.format = format, .rows = rows, .cols = cols, .codes = {}, .scales = {}, .zeros = {}};
  out.codes = AlignedBytes(static_cast<size_t>(format.element_bytes(rows, cols)));
  for (size_t i = 0; i + 8 <= out.codes.size(); i += 8) {
    // E4M3 and INT8: any code but NaN. BF16: exponents from 2^-16 to 1.
    const uint64_t bits = random.next();
    const uint64_t word = format.element == ElementType::kBf16 ? (bits & 0x87FF87FF87FF87FFull) | 0x3800380038003800ull
                                                               : bits & 0xF7F7F7F7F7F7F7F7ull;
    std::memcpy(out.codes.data() + i, &word, 8);
  }
  // 2^-7: every scale type has it.
  out.scales.assign(static_cast<size_t>(format.scale_rows(rows) * format.scale_cols(cols)), 0.0078125f);
  if (format.zero_points) out.zeros.assign(out.scales.size(), 1.0f);
  return out;
}

class Layers {
 public:
  Layers(const LinearKernel& kernel, const Plan& plan, Shape shape, size_t rotate) : shape_(shape) {
    const LinearKey key{.weight = plan.weight, .activation = plan.activation, .rows = shape.n, .cols = shape.k};
    const Matrix matrix = random_matrix(plan.weight, shape.n, shape.k, 1);
    const size_t count = std::max<size_t>(1, rotate / matrix.codes.size());
    for (size_t i = 0; i < count; ++i) {
      layers_.push_back(kernel.allocate(key));
      const double start = now(true);
      kernel.pack(layers_.back(), 0, matrix.view());
      pack_seconds_ += now(true) - start;
    }
    packed_bytes_ = static_cast<double>(count * matrix.codes.size());
    weight_bytes_ = static_cast<double>(matrix.codes.size());
  }
  const PackedLinear& next() { return layers_[index_++ % layers_.size()]; }
  double weight_bytes() const { return weight_bytes_; }
  double pack_gb_s() const { return packed_bytes_ / pack_seconds_ * 1e-9; }
  Shape shape() const { return shape_; }

 private:
  Shape shape_;
  std::vector<PackedLinear> layers_;
  size_t index_ = 0;
  double weight_bytes_ = 0, packed_bytes_ = 0, pack_seconds_ = 0;
};

// Seconds of one call, the median of `repeat` timings of a few calls each.
double time_calls(const LinearKernel& kernel, Layers& layers, const Plan& plan, int64_t m, ThreadPool& pool,
                  const Options& options) {
  const Shape shape = layers.shape();
  const Matrix input = random_matrix(plan.activation, m, shape.k, 2);
  ActivationBuffer buffer;
  const Activation x = buffer.resize(plan.activation, m, shape.k);
  for (int64_t r = 0; r < m; ++r)
    std::memcpy(x.row(r), input.codes.data() + r * plan.activation.element_bytes(1, shape.k),
                static_cast<size_t>(plan.activation.element_bytes(1, shape.k)));
  if (plan.activation.scaled()) std::fill_n(x.scales, m * x.scale_stride, 0.01f);
  AlignedArray<float> y(static_cast<size_t>(m * shape.n));
  Scratch scratch;
  const auto call = [&] {
    kernel.run({.weight = &layers.next(), .input = x, .output = y.data(), .output_stride = shape.n}, pool, scratch);
  };
  for (int i = 0; i < 3; ++i) call();
  const double flops = 2.0 * static_cast<double>(m * shape.n * shape.k);
  const int calls = std::clamp(static_cast<int>(std::min(4e9 / flops, 30e6 * 10 / layers.weight_bytes())), 1, 2000);
  std::vector<double> seconds;
  const int repeats = options.cpu_time ? calls * options.repeat : options.repeat;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const double start = now(options.cpu_time);
    for (int i = 0; i < (options.cpu_time ? 1 : calls); ++i) call();
    seconds.push_back((now(options.cpu_time) - start) / (options.cpu_time ? 1 : calls));
  }
  return options.cpu_time ? *std::min_element(seconds.begin(), seconds.end()) : median(seconds);
}

// GB/s of this thread reading memory that no cache holds, by time on the core.
double core_read_rate() {
  static const AlignedBytes memory = [] {
    AlignedBytes bytes(size_t{320} << 20);
    for (size_t i = 0; i < bytes.size(); i += 4096) bytes.data()[i] = std::byte{1};
    return bytes;
  }();
  double best = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const double start = now(true);
    __m256i sum = _mm256_setzero_si256();
    for (size_t i = 0; i < memory.size(); i += 64) {
      const auto* line = reinterpret_cast<const __m256i*>(memory.data() + i);
      _mm_prefetch(reinterpret_cast<const char*>(line) + 4096, _MM_HINT_T0);
      sum = _mm256_xor_si256(sum, _mm256_xor_si256(line[0], line[1]));
    }
    asm volatile("" : : "x"(sum));
    best = std::max(best, static_cast<double>(memory.size()) / (now(true) - start) * 1e-9);
  }
  return best;
}

// The roofline of this thread by time on the core.
Roofline core_roofline() {
  const auto rate = [](BurstKind kind) {
    double best = 0;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const double start = now(true);
      const auto done = static_cast<double>(run_burst(kind, 100'000'000));
      best = std::max(best, 2 * done / (now(true) - start) * 1e-9);
    }
    return best;
  };
  Roofline out{.read_gb_s = core_read_rate()};
  out.fma_gflops = rate(isa_available(Isa::kAvx512) ? BurstKind::kFmaAvx512 : BurstKind::kFmaAvx2);
  if (isa_available(Isa::kAvx512Bf16)) out.bf16_dot_gflops = rate(BurstKind::kBf16Dot);
  if (isa_available(Isa::kAvx512)) out.int8_gops = rate(BurstKind::kInt8Dot);
  return out;
}

double peak_of(const Plan& plan, const Roofline& roofline) {
  const std::string_view row = plan.row;
  if (row == "avx512/vnni") return roofline.int8_gops;
  if (row == "avx512_bf16/dot") return roofline.bf16_dot_gflops;
  return roofline.fma_gflops;
}

void bench_plan(const Plan& plan, ThreadPool& pool, const Options& options) {
  const auto rows = linear_kernels();
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const auto* row) { return row->name == plan.row; });
  if (found == rows.end() || !isa_available((*found)->isa)) return;
  for (const Shape shape : {Shape{576, 1536}, Shape{1536, 576}, Shape{2048, 8192}, Shape{4096, 4096}}) {
    if (options.n != 0 && (shape.n != options.n || shape.k != options.k)) continue;
    Layers layers(**found, plan, shape, static_cast<size_t>(options.rotate) << 20);
    fmt::print("{} {}, {}x{}: packed at {:.1f} GB/s per core\n", plan.row, plan.name, shape.n, shape.k,
               layers.pack_gb_s());
    for (const int64_t m : {1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 512}) {
      if (options.m != 0 && m != options.m) continue;
      const Roofline roofline = options.cpu_time ? core_roofline() : measure_roofline(pool);
      const double seconds = time_calls(**found, layers, plan, m, pool, options);
      const double gflops = 2.0 * static_cast<double>(m * shape.n * shape.k) / seconds * 1e-9;
      const double gb_s = layers.weight_bytes() / seconds * 1e-9, peak = peak_of(plan, roofline);
      const double share = std::max(gflops / peak, gb_s / roofline.read_gb_s);
      fmt::print("  M={:<4} {:8.1f} us  {:6.1f} GB/s of {:5.1f}  {:7.1f} GF of {:6.1f}  {:4.0f} %\n", m, seconds * 1e6,
                 gb_s, roofline.read_gb_s, gflops, peak, 100 * share);
      std::fflush(stdout);
    }
  }
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--cpu-time") {
      options.cpu_time = true;
      continue;
    }
    if (i + 1 == argc) {
      fmt::print(stderr, "{} wants a value\n", flag);
      return 1;
    }
    const char* value = argv[++i];
    if (flag == "--threads") options.threads = std::atoi(value);
    if (flag == "--repeat") options.repeat = std::atoi(value);
    if (flag == "--rotate") options.rotate = std::atoi(value);
    if (flag == "--row") options.row = value;
    if (flag == "--rows") options.m = std::atoi(value);
    if (flag == "--shape") std::sscanf(value, "%ldx%ld", &options.n, &options.k);
  }
  if (options.cpu_time) options.threads = 1;
  ThreadPool pool(options.threads);
  fmt::print("{}, {} threads\n", cpu_features().model, options.threads);
  for (const Plan& plan : plans())
    if (options.row.empty() || options.row == plan.row || options.row == fmt::format("{} {}", plan.row, plan.name))
      bench_plan(plan, pool, options);
  return 0;
}

}  // namespace
}  // namespace octavo

int main(int argc, char** argv) {
  return octavo::run(argc, argv);
}
