#include "models/layers/greedy_head.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>

#include "formats/quantize_rows.h"

namespace octavo {
namespace {

constexpr int64_t kPanelRows = 32, kSlabRows = 128, kGrain = 4096;
constexpr double kRounding = 0x1p-24;  // of one FP32 operation, relative
constexpr float kTiny = 1e-30f;        // more than what subnormals lose in a sum

float rounded_up(double value) {
  return std::nextafter(static_cast<float>(value), std::numeric_limits<float>::infinity());
}

// How far the copy's logit may be off, for ||x|| = 1: quantization, and the rounding of both sums (each of at most K
// products and sums, twice that for instructions that round in between) and of what compares them.
float bound(std::span<const float> weights, const MatrixView& copy, int64_t row) {
  double error = 0, size = 0, copy_size = 0;
  for (int64_t k = 0; k < copy.cols; ++k) {
    const double w = weights[static_cast<size_t>(k)], q = copy.at(row, k);
    error += (w - q) * (w - q);
    size += w * w;
    copy_size += q * q;
  }
  const double operations = 4.0 * static_cast<double>(copy.cols) + 16.0;
  return rounded_up(std::sqrt(error) + operations * kRounding * (std::sqrt(size) + std::sqrt(copy_size)));
}

float norm(const Activation& x, int64_t row) {
  double sum = 0;
  for (int64_t k = 0; k < x.cols; ++k) {
    const double value = load_element(ElementType::kBf16, x.row(row), static_cast<size_t>(k));
    sum += value * value;
  }
  return rounded_up(std::sqrt(sum) * (1 + 0x1p-20));
}

// The highest of near[n] - bounds[n] x size over [begin, end); NaN is passed over.
float highest_floor(const float* near, const float* bounds, float size, int64_t begin, int64_t end) {
  constexpr int64_t kLanes = 32;
  float lanes[kLanes];
  std::fill(std::begin(lanes), std::end(lanes), -std::numeric_limits<float>::infinity());
  int64_t n = begin;
  for (; n + kLanes <= end; n += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) {
      const float low = near[n + l] - (bounds[n + l] * size + kTiny);
      lanes[l] = low > lanes[l] ? low : lanes[l];
    }
  for (; n < end; ++n) lanes[0] = std::max(lanes[0], near[n] - (bounds[n] * size + kTiny));
  return *std::max_element(std::begin(lanes), std::end(lanes));
}

// The lowest id of the highest logit in these panels.
int32_t highest_of(const float* logits, std::span<const int32_t> panels, int64_t limit) {
  float highest = -std::numeric_limits<float>::infinity();
  int32_t best = -1;
  for (const int64_t panel : panels)
    for (int64_t n = panel * kPanelRows; n < std::min(limit, (panel + 1) * kPanelRows); ++n)
      if (logits[n] > highest) highest = logits[n], best = static_cast<int32_t>(n);
  return std::isfinite(highest) ? best : -1;
}

}  // namespace

const PackedLinear* GreedyHead::fits(const LinearGroup& head) {
  if (head.inputs().size() != 1 || head.inputs()[0].layers.size() != 1) return nullptr;
  const PackedLinear& layer = head.inputs()[0].layers[0];
  const TensorFormat bf16 = plain_format(ElementType::kBf16);
  const bool plain = layer.key.weight == bf16 && layer.key.activation == bf16;
  return plain && layer.bias.empty() && layer.num_outliers == 0 ? &layer : nullptr;
}

Result<GreedyHead> GreedyHead::make(const PackedLinear& head, ReadRows rows, Isa isa, ThreadPool& pool) {
  GreedyHead out(head, isa);
  OCTAVO_TRY(out.fill(rows, pool));
  return out;
}

GreedyHead::GreedyHead(const PackedLinear& head, Isa isa) : head_(&head) {
  LinearKey key = head.key;
  key.weight = row_format(ElementType::kInt8);
  const LinearKernel& kernel = choose_linear(key, isa);
  copy_ = kernel.allocate(key);
  copy_.kernel = &kernel;
  bounds_ = AlignedArray<float>(static_cast<size_t>(key.rows));
  const int64_t panels = (key.rows + kPanelRows - 1) / kPanelRows;
  panel_bytes_ = head.panels.size() / static_cast<size_t>(panels);
  marked_.resize(static_cast<size_t>(panels));
}

Result<void> GreedyHead::fill(ReadRows rows, ThreadPool& pool) {
  const int64_t count = head_->key.rows;
  std::mutex mutex;
  std::optional<Error> error;
  pool.parallel_items((count + kSlabRows - 1) / kSlabRows, [&](int64_t slab, int) {
    const int64_t begin = slab * kSlabRows, end = std::min(count, begin + kSlabRows);
    std::vector<float> values(static_cast<size_t>((end - begin) * head_->key.cols));
    if (Result<void> read = rows(begin, end, values); !read) {
      const std::lock_guard lock(mutex);
      error = std::move(read).error();
      return;
    }
    pack(begin, end, values);
  });
  if (error) return fail(std::move(*error));
  return {};
}

void GreedyHead::pack(int64_t begin, int64_t end, std::span<float> values) {
  const int64_t rows = end - begin, cols = head_->key.cols;
  for (float& value : values) {  // as the head has them
    std::byte code[2];
    store_element(ElementType::kBf16, code, 0, value);
    value = load_element(ElementType::kBf16, code, 0);
  }
  const TensorFormat& format = copy_.key.weight;
  Matrix copy{.format = format, .rows = rows, .cols = cols, .codes = {}, .scales = {}, .zeros = {}};
  copy.codes = AlignedBytes(static_cast<size_t>(format.element_bytes(rows, cols)));
  copy.scales.resize(static_cast<size_t>(rows));
  quantize_rows({ElementType::kF32, reinterpret_cast<const std::byte*>(values.data()), rows, cols}, format, copy.scales,
                {copy.codes.data(), copy.codes.size()});
  copy_.kernel->pack(copy_, begin, copy.view());
  for (int64_t r = 0; r < rows; ++r)
    bounds_[static_cast<size_t>(begin + r)] =
        bound(values.subspan(static_cast<size_t>(r * cols), static_cast<size_t>(cols)), copy.view(), r);
}

void GreedyHead::find(const GreedySearch& search, ThreadPool& pool, Scratch& scratch) {
  const LinearCall call{
      .weight = &copy_, .input = search.input, .output = search.logits, .output_stride = search.stride};
  copy_.kernel->run(call, pool, scratch);
  choose_panels(search, pool);
  LinearCall exact = call;
  exact.weight = head_;
  exact.panels = wanted_;
  if (!wanted_.empty()) head_->kernel->run(exact, pool, scratch);
  for (size_t m = 0; m < search.best.size(); ++m)
    search.best[m] = highest_of(search.logits + static_cast<int64_t>(m) * search.stride, wanted_, search.limit);
}

// Those in which a logit can be as high as the highest one. Comparisons with NaN say yes.
void GreedyHead::choose_panels(const GreedySearch& search, ThreadPool& pool) {
  const auto threads = static_cast<size_t>(pool.size());
  const int64_t rows = search.input.rows;
  norms_.resize(static_cast<size_t>(rows));
  floors_.assign(static_cast<size_t>(rows) * threads, -std::numeric_limits<float>::infinity());
  for (int64_t m = 0; m < rows; ++m) norms_[static_cast<size_t>(m)] = norm(search.input, m);
  pool.parallel_for(search.limit, kGrain, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t m = 0; m < rows; ++m) {
      const float* near = search.logits + m * search.stride;
      const float size = norms_[static_cast<size_t>(m)];
      float& floor = floors_[static_cast<size_t>(m) * threads + static_cast<size_t>(thread)];
      floor = std::max(floor, highest_floor(near, bounds_.data(), size, begin, end));
    }
  });
  std::fill(marked_.begin(), marked_.end(), uint8_t{0});
  const int64_t panels = (search.limit + kPanelRows - 1) / kPanelRows;
  pool.parallel_for(panels, kGrain / kPanelRows, [&](int64_t begin, int64_t end, int) {
    for (int64_t m = 0; m < rows; ++m) {
      const float* near = search.logits + m * search.stride;
      const float size = norms_[static_cast<size_t>(m)];
      const auto first = floors_.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(m) * threads);
      const float floor = *std::max_element(first, first + static_cast<ptrdiff_t>(threads));
      for (int64_t panel = begin; panel < end; ++panel) {
        int reach = 0;
        for (int64_t n = panel * kPanelRows; n < std::min(search.limit, (panel + 1) * kPanelRows); ++n)
          reach += !(near[n] + (bounds_[static_cast<size_t>(n)] * size + kTiny) < floor);
        if (reach > 0) marked_[static_cast<size_t>(panel)] = 1;
      }
    }
  });
  wanted_.clear();
  for (size_t panel = 0; panel < marked_.size(); ++panel)
    if (marked_[panel] != 0) wanted_.push_back(static_cast<int32_t>(panel));
}

}  // namespace octavo
