// Attention and producers beside the read bandwidth and the FMA peak of the same run.
//   bench_attention [--threads N] [--isa NAME] [--repeat R]
// Decode: KV of many layers, streamed from memory, in extents of 32 pages. Prefill: 512 new tokens, useful (causal)
// FLOPs.
#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "kernels/attention.h"
#include "kernels/bursts.h"
#include "kernels/producers.h"

namespace octavo {
namespace {

struct Options {
  int threads = 2, repeat = 7;
  Isa isa = Isa::kAvx512;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// GB/s of reading `bytes` once, all threads.
double read_bandwidth(const std::byte* data, size_t bytes, ThreadPool& pool) {
  const double start = now();
  const int64_t lines = static_cast<int64_t>(bytes / 256);
  pool.parallel_for(lines, 64, [&](int64_t begin, int64_t end, int) {
    __m256i sum[4] = {};
    for (int64_t i = begin; i < end; ++i) {
      const auto* line = reinterpret_cast<const __m256i*>(data + i * 256);
      for (int j = 0; j < 4; ++j) {
        _mm_prefetch(reinterpret_cast<const char*>(line) + 2048 + 64 * j, _MM_HINT_T0);
        sum[j] = _mm256_xor_si256(sum[j], _mm256_xor_si256(line[2 * j], line[2 * j + 1]));
      }
    }
    asm volatile("" : : "x"(_mm256_xor_si256(_mm256_xor_si256(sum[0], sum[1]), _mm256_xor_si256(sum[2], sum[3]))));
  });
  return static_cast<double>(lines) * 256 / (now() - start) * 1e-9;
}

// GFLOP/s of FMA on all threads at once.
double fma_peak(ThreadPool& pool, Isa isa) {
  const BurstKind kind = isa == Isa::kAvx2 ? BurstKind::kFmaAvx2 : BurstKind::kFmaAvx512;
  std::vector<int64_t> done(static_cast<size_t>(pool.size()));
  const double start = now();
  pool.run([&](int thread) { done[static_cast<size_t>(thread)] = run_burst(kind, 400'000'000); });
  int64_t total = 0;
  for (const int64_t n : done) total += n;
  return 2.0 * static_cast<double>(total) / (now() - start) * 1e-9;
}

struct ModelShape {
  int kv_heads, group, head_dim;
};

// KV of `layers` layers of one sequence of `context` tokens, and the calls over it.
class Cache {
 public:
  Cache(ModelShape shape, ElementType element, int64_t context, int64_t new_tokens, int layers)
      : shape_(shape), context_(context), new_tokens_(new_tokens), layers_(layers) {
    kv_.layout = {.k = element, .v = element, .head_dim = shape.head_dim};
    kv_.k_format = kv_.v_format = element_bits(element) > 8 ? plain_format(element) : row_format(element);
    kv_.num_kv_heads = shape.kv_heads;
    kv_.pages_per_extent = 32;
    kv_.head_stride = 32 * kv_.layout.page_bytes();
    kv_.extent_stride = kv_.head_stride * static_cast<size_t>(shape.kv_heads);
    const int64_t pages = (context + kPageTokens - 1) / kPageTokens;
    layer_bytes_ = static_cast<size_t>((pages + 31) / 32) * kv_.extent_stride;
    memory_ = AlignedBytes(layer_bytes_ * static_cast<size_t>(layers));
    for (int64_t i = 0; i < pages; ++i) table_.push_back(static_cast<int32_t>(i));
    fill();
    q_.resize(static_cast<size_t>(new_tokens * width()));
    Random random(1);
    for (float& x : q_) x = random.normal();
  }

  int64_t width() const { return static_cast<int64_t>(shape_.kv_heads) * shape_.group * shape_.head_dim; }
  const AlignedBytes& memory() const { return memory_; }
  double kv_bytes() const {  // that one layer's attention reads
    return static_cast<double>(context_ / kPageTokens) * static_cast<double>(kv_.layout.page_bytes()) * shape_.kv_heads;
  }

  void run_layer(const AttentionKernel& kernel, int layer, ThreadPool& pool) {
    const KvSequence sequence{0, new_tokens_, context_ - new_tokens_, table_.data()};
    AttentionCall call{.q = q_.data(), .q_stride = width(), .num_heads = shape_.kv_heads * shape_.group};
    call.head_dim = shape_.head_dim;
    call.scale = 0.125f;
    call.sequences = &sequence;
    call.num_sequences = 1;
    call.kv = kv_;
    call.kv.base = memory_.data() + static_cast<size_t>(layer) * layer_bytes_;
    call.output = output_.resize(row_format(ElementType::kE4m3), new_tokens_, width());
    kernel.run(call, pool, scratch_);
  }
  int layers() const { return layers_; }

 private:
  void fill() {  // with normally distributed values
    const ElementType element = kv_.layout.k;
    const size_t bytes = static_cast<size_t>(element_bits(element)) / 8;
    std::vector<std::byte> samples(4096 * bytes);
    Random random(2);
    for (size_t i = 0; i < 4096; ++i)
      store_element(element, samples.data(), i,
                    random.normal() * element_info(element).max / (bytes == 1 ? 4.0f : 1e38f));
    for (size_t i = 0; i < memory_.size(); i += bytes)
      std::memcpy(memory_.data() + i, samples.data() + (random.next() & 4095) * bytes, bytes);
    const float scale = 0.01f;
    const size_t page = kv_.layout.page_bytes();
    for (size_t i = 0; i + page <= memory_.size(); i += page)
      for (size_t s = kv_.layout.k_scales_offset(); s < page; s += 4) std::memcpy(memory_.data() + i + s, &scale, 4);
  }

  ModelShape shape_;
  int64_t context_, new_tokens_;
  int layers_;
  PagedKvLayer kv_;
  size_t layer_bytes_ = 0;
  AlignedBytes memory_;
  std::vector<int32_t> table_;
  std::vector<float> q_;
  ActivationBuffer output_;
  Scratch scratch_;
};

AttentionKey key_of(ModelShape shape, ElementType element) {
  return {element, element, shape.head_dim, shape.group};
}

void bench_decode(const Options& options, ThreadPool& pool, ModelShape shape, int64_t context) {
  double bf16_time = 0;
  for (const ElementType element : {ElementType::kBf16, ElementType::kE4m3, ElementType::kE5m2, ElementType::kInt8}) {
    const AttentionKernel& kernel = choose_attention(key_of(shape, element), options.isa);
    const int64_t layer_elements = 2 * context * shape.kv_heads * shape.head_dim;
    const int layers =
        static_cast<int>(std::max<int64_t>(4, (320 << 20) / layer_elements / (element == ElementType::kBf16 ? 2 : 1)));
    Cache cache(shape, element, context, 1, layers);
    std::vector<double> times, bandwidths;
    for (int r = 0; r < options.repeat; ++r) {
      bandwidths.push_back(read_bandwidth(cache.memory().data(), cache.memory().size(), pool));
      const double start = now();
      for (int layer = 0; layer < layers; ++layer) cache.run_layer(kernel, layer, pool);
      times.push_back((now() - start) / layers);
    }
    const double time = median(times), rate = cache.kv_bytes() / time * 1e-9, read = median(bandwidths);
    if (element == ElementType::kBf16) bf16_time = time;
    fmt::print(
        "decode  {:2}x{} hd {:3} ctx {:5} {:9} {:7.2f} ns/token {:6.1f} us {:5.1f} GB/s = {:3.0f} % of read {:5.1f}  "
        "{:.2f} x BF16  {}\n",
        shape.kv_heads, shape.group, shape.head_dim, context, element_name(element),
        time / static_cast<double>(context) * 1e9, time * 1e6, rate, 100 * rate / read, read, time / bf16_time,
        kernel.name);
  }
}

void bench_prefill(const Options& options, ThreadPool& pool, ModelShape shape, int64_t cached, int64_t tokens) {
  for (const ElementType element : {ElementType::kBf16, ElementType::kE4m3}) {
    const AttentionKernel& kernel = choose_attention(key_of(shape, element), options.isa);
    Cache cache(shape, element, cached + tokens, tokens, 1);
    std::vector<double> times, peaks;
    for (int r = 0; r < options.repeat; ++r) {
      peaks.push_back(fma_peak(pool, options.isa));
      const double start = now();
      for (int i = 0; i < 4; ++i) cache.run_layer(kernel, 0, pool);
      times.push_back((now() - start) / 4);
    }
    const double keys =
        static_cast<double>(tokens) * (static_cast<double>(cached) + 0.5 * static_cast<double>(tokens + 1));
    const double rate = 4.0 * keys * static_cast<double>(cache.width()) / median(times) * 1e-9, peak = median(peaks);
    fmt::print(
        "prefill {:2}x{} hd {:3} {:4} after {:5} {:9} {:8.3f} ms {:6.1f} GF = {:3.0f} % of FMA peak {:5.0f}  {}\n",
        shape.kv_heads, shape.group, shape.head_dim, tokens, cached, element_name(element), median(times) * 1e3, rate,
        100 * rate / peak, peak, kernel.name);
  }
}

template <class Call>
double time_of(const Options& options, int inner, const Call& call) {
  std::vector<double> times;
  for (int r = 0; r < options.repeat; ++r) {
    const double start = now();
    for (int i = 0; i < inner; ++i) call();
    times.push_back((now() - start) / inner);
  }
  return median(times);
}

void bench_producers(const Options& options, ThreadPool& pool, int64_t rows, int64_t cols) {
  const ProducerKernels& kernels = choose_producers(options.isa);
  Random random(3);
  std::vector<float> x(static_cast<size_t>(rows * 2 * cols)), weight(static_cast<size_t>(cols), 1.0f);
  for (float& value : x) value = random.normal();
  ActivationBuffer buffer;
  const Activation out = buffer.resize(row_format(ElementType::kE4m3), rows, cols);
  const int inner = static_cast<int>(std::max<int64_t>(3, 4'000'000 / (rows * cols)));
  RmsNormCall norm{.input = x.data(), .input_stride = cols, .weight = weight.data(), .eps = 1e-5f, .output = out};
  const double t_norm = time_of(options, inner, [&] { kernels.rms_norm(norm, pool); });
  QuantizeCall quantize{.input = x.data(), .input_stride = cols, .output = out};
  const double t_quantize = time_of(options, inner, [&] { kernels.quantize(quantize, pool); });
  SiluGateCall gate{.input = x.data(), .input_stride = 2 * cols, .output = out};
  const double t_gate = time_of(options, inner, [&] { kernels.silu_gate(gate, pool); });
  fmt::print("producers {:4} x {:5} e4m3: rms_norm {:9.0f} ns  quantize {:9.0f} ns  silu_gate {:9.0f} ns  {}\n", rows,
             cols, t_norm * 1e9, t_quantize * 1e9, t_gate * 1e9, kernels.name);
}

void bench_rope_kv(const Options& options, ThreadPool& pool, int64_t rows) {
  const ProducerKernels& kernels = choose_producers(options.isa);
  const int heads = 9, kv_heads = 3, head_dim = 64;
  PagedKvLayer kv;
  kv.layout = {.k = ElementType::kE4m3, .v = ElementType::kE4m3, .head_dim = head_dim};
  kv.k_format = kv.v_format = row_format(ElementType::kE4m3);
  kv.num_kv_heads = kv_heads;
  kv.pages_per_extent = 32;
  kv.head_stride = 32 * kv.layout.page_bytes();
  kv.extent_stride = kv.head_stride * kv_heads;
  AlignedBytes pages(kv.extent_stride);
  kv.base = pages.data();
  std::vector<int32_t> table(32);
  for (int i = 0; i < 32; ++i) table[static_cast<size_t>(i)] = i;
  std::vector<float> qkv(static_cast<size_t>(rows * 960), 0.5f), cos_sin(1024 * 64);
  for (size_t i = 0; i < cos_sin.size(); ++i) cos_sin[i] = i % 64 < 32 ? 1.0f : 0.0f;
  const KvSequence sequence{0, rows, 100, table.data()};
  RopeKvCall call{.qkv = qkv.data(), .stride = 960, .rows = rows, .num_heads = heads, .num_kv_heads = kv_heads};
  call.head_dim = head_dim;
  call.cos_sin = cos_sin.data();
  call.sequences = &sequence;
  call.num_sequences = 1;
  call.kv = kv;
  const int inner = static_cast<int>(std::max<int64_t>(3, 20000 / rows));
  const double time = time_of(options, inner, [&] { kernels.rope_kv(call, pool); });
  fmt::print("rope_kv   {:4} rows, 9 + 2 x 3 heads of 64, e4m3: {:9.0f} ns  {}\n", rows, time * 1e9, kernels.name);
}

}  // namespace
}  // namespace octavo

int main(int argc, char** argv) {
  using namespace octavo;
  Options options;
  options.isa = isa_available(Isa::kAvx512) ? Isa::kAvx512 : Isa::kAvx2;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (flag == "--threads") options.threads = std::atoi(argv[i + 1]);
    if (flag == "--repeat") options.repeat = std::atoi(argv[i + 1]);
    if (flag == "--isa")
      if (const auto isa = isa_from_name(argv[i + 1])) options.isa = *isa;
  }
  ThreadPool pool(options.threads);
  fmt::print("{} threads, {}\n", options.threads, isa_name(options.isa));
  for (const int64_t cols : {576, 1536, 2048}) bench_producers(options, pool, 1, cols);
  bench_producers(options, pool, 512, 576);
  bench_producers(options, pool, 512, 1536);
  bench_rope_kv(options, pool, 1);
  bench_rope_kv(options, pool, 512);
  bench_decode(options, pool, {3, 3, 64}, 256);
  bench_decode(options, pool, {3, 3, 64}, 1024);
  bench_decode(options, pool, {3, 3, 64}, 8192);
  bench_decode(options, pool, {3, 3, 64}, 32768);
  bench_decode(options, pool, {8, 4, 64}, 8192);
  bench_decode(options, pool, {8, 4, 128}, 8192);
  bench_decode(options, pool, {8, 1, 64}, 8192);
  bench_prefill(options, pool, {3, 3, 64}, 0, 512);
  bench_prefill(options, pool, {3, 3, 64}, 8192, 512);
  bench_prefill(options, pool, {8, 4, 128}, 0, 512);
  bench_prefill(options, pool, {3, 3, 64}, 448, 64);
}
