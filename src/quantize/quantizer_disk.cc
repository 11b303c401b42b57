// What a quantization takes on the disk: the output, and what is temporary.
#include "checkpoint/output_folder.h"
#include "quantize/companions.h"
#include "quantize/quantizer.h"
#include "quantize/statistics_file.h"

namespace octavo {
namespace {

constexpr int64_t kNumberBytes = 20;  // of a float in JSON, its comma with it

// Of a safetensors header's line.
int64_t header_bytes(size_t name_bytes, size_t dims) {
  return static_cast<int64_t>(name_bytes + 70 + 8 * dims);
}

int64_t file_bytes(const std::filesystem::path& path) {
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

// Codes, FP32 scales and zero points, outlier channels, and six figures, under six names (work_folder.cc).
int64_t finished_bytes(const QuantizeJob& job, int64_t outliers) {
  const TensorFormat& format = job.format;
  const int64_t grid = format.scale_rows(job.module.rows) * format.scale_cols(job.module.cols);
  return format.element_bytes(job.module.rows, job.module.cols) + 4 * grid * (format.zero_points ? 2 : 1) +
         4 * outliers * (job.module.rows + 1) + 6 * 8 + 6 * header_bytes(job.module.name.size() + 10, 1);
}

struct StatisticsBytes {
  int64_t npz = 0, json = 0;
};

// One place: four arrays of an .npz (statistics_file.h; some twenty-five octaves of sixteen bins), and its figures as
// text.
void add_place(StatisticsBytes& bytes, int64_t channels) {
  constexpr int64_t kBins = 400, kMemberBytes = 300, kFigures = 600;
  bytes.npz += 4 * kMemberBytes + 8 * kBins + 4 * channels;
  bytes.json += kFigures;
}

StatisticsBytes statistics_bytes(const ModelConfig& c, bool head) {
  StatisticsBytes bytes;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    for (const LinearPlace& place : layer_places(c, static_cast<int>(layer))) add_place(bytes, input_cols(c, place));
    for (int64_t i = 0; i < 2 * c.num_kv_heads; ++i) add_place(bytes, c.head_dim);
  }
  if (head) add_place(bytes, c.hidden_size);
  return bytes;
}

}  // namespace

int64_t Quantizer::copied_bytes() const {
  int64_t bytes = 0;
  for (const TensorEntry* entry : kept_) bytes += entry->stored_bytes;
  return bytes;
}

Result<DiskNeed> Quantizer::disk_need(const std::filesystem::path& out) const {
  const ModelConfig& config = checkpoint_.config();
  DiskNeed need;
  need.kept = WorkFolder::finished_bytes(out) + OutputFolder::left_bytes(out);
  need.output = summary_.bytes_after + file_bytes(checkpoint_.path() / "config.json");
  for (const TensorToWrite& tensor : layout_) need.output += header_bytes(tensor.name.size(), tensor.shape.size());
  if (summary_.dialect != "none")
    need.output += std::ssize(
        write_quantization_config(summary_.dialect, summary_.plan, modules_, options_.kv.has_value()).dump(2));
  OCTAVO_ASSIGN(const std::vector<std::string> companions, list_companions(checkpoint_.path()));
  for (const std::string& name : companions) need.output += file_bytes(checkpoint_.path() / name);
  if (options_.kv || kv_calibration_)
    need.output += config.num_layers * kNumberBytes * 2 * (config.kv_size() + config.num_kv_heads);
  if (!samples_) return need;
  if (!jobs_.empty()) {
    const StatisticsBytes statistics = statistics_bytes(config, jobs_.back().module.role == Role::kHead);
    need.output += statistics.npz + statistics.json;
    need.work += statistics.npz;
    for (const WeightJob& job : jobs_) need.work += finished_bytes(job, summary_.plan.linear(job.module.name).outliers);
    if (options_.transforms.fitted())
      need.work += 4 * config.num_layers * (2 * config.hidden_size + config.q_size() + config.intermediate_size);
  }
  const CalibrationPass::Held held =
      CalibrationPass::held(config, running_plan(summary_.plan, modules_, calibrate_), *samples_);
  for (const int64_t bytes : {held.residual, held.handed_on})
    if (bytes > calibrate_.memory_limit / 2) need.spilled += bytes;
  return need;
}

}  // namespace octavo
