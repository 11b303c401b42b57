#include "quantize/work_folder.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/file.h"
#include "base/function_ref.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "quantize/statistics_file.h"

namespace octavo {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRun = "run.txt", kLock = "lock", kWeights = ".safetensors", kStatistics = ".npz",
                           kNotes = ".txt";
constexpr int kFigures = 6;

// Of a module's tensors in a layer's file: codes, scales, zero points, outlier channels, and {input scale, objective,
// rounding's objective, error, the outer scale's factor and divisor}.
std::string codes_name(const std::string& module) {
  return module + ".codes";
}
std::string scales_name(const std::string& module) {
  return module + ".scales";
}
std::string zeros_name(const std::string& module) {
  return module + ".zeros";
}
std::string channels_name(const std::string& module) {
  return module + ".outlier_channels";
}
std::string outliers_name(const std::string& module) {
  return module + ".outlier_weight";
}
std::string figures_name(const std::string& module) {
  return module + ".figures";
}

// Of a place's factors.
constexpr std::pair<LinearInput, std::string_view> kFactorNames[] = {{LinearInput::kQkv, "qkv.factors"},
                                                                     {LinearInput::kO, "o.factors"},
                                                                     {LinearInput::kGateUp, "gate_up.factors"},
                                                                     {LinearInput::kDown, "down.factors"}};

constexpr std::string_view kExpertTokens = "expert_tokens";

Result<std::span<const std::byte>> bytes_of(const TensorReader& reader, const std::string& name, size_t size,
                                            const fs::path& file) {
  const TensorEntry* entry = reader.find(name);
  if (entry != nullptr && entry->plain && entry->plain->data.size() == size) return entry->plain->data;
  return fail(
      {.what = "a finished layer in the work folder is damaged",
       .where = file.string(),
       .found = entry == nullptr ? "no tensor " + name : fmt::format("{} of {} bytes", name, entry->stored_bytes),
       .expected = fmt::format("{} bytes", size),
       .remedy = "remove the file: the layer is then done again"});
}

Error busy(const fs::path& path) {
  return {.what = "another run is at work on this output",
          .where = path.string(),
          .remedy = "wait for it, or choose another output folder"};
}

Error of_another_run(const fs::path& path, int finished) {
  return {.what = "the work folder belongs to a run with another model, text, scheme or options",
          .where = path.string(),
          .found = fmt::format("{} finished layers of it", finished),
          .remedy = fmt::format("repeat that run to finish it, or remove {} to start anew", path.string())};
}

// Calls body(path) for each finished layer's file.
void for_finished(const fs::path& folder, FunctionRef<void(const fs::path&)> body) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == kWeights) body(it->path());
}

int count_finished(const fs::path& folder) {
  int count = 0;
  for_finished(folder, [&](const fs::path&) { ++count; });
  return count;
}

}  // namespace

fs::path WorkFolder::path_for(const fs::path& out) {
  fs::path path = out.has_filename() ? out : out.parent_path();
  path += ".work";
  return path;
}

Result<WorkFolder> WorkFolder::lock(const fs::path& out) {
  WorkFolder folder;
  folder.path_ = path_for(out);
  std::error_code error;
  fs::create_directory(folder.path_, error);
  if (error)
    return fail({.what = "cannot create the work folder", .where = folder.path_.string(), .found = error.message()});
  OCTAVO_ASSIGN(folder.lock_, FileLock::take(folder.path_ / kLock));
  if (!folder.lock_) return fail(busy(folder.path_));
  return folder;
}

Result<WorkFolder> WorkFolder::open(const fs::path& out, const std::string& fingerprint) {
  OCTAVO_ASSIGN(WorkFolder folder, lock(out));
  const fs::path run = folder.path_ / kRun;
  std::error_code ignored;
  if (fs::exists(run, ignored)) {
    OCTAVO_ASSIGN(const std::string found, read_text_file(run));
    if (found == fingerprint) {
      folder.clear_temporaries();
      return folder;
    }
    if (const int finished = folder.finished(); finished > 0) return fail(of_another_run(folder.path_, finished));
  }
  folder.clear();
  OCTAVO_TRY(write_text_file(run, fingerprint));
  return folder;
}

Result<void> WorkFolder::check(const fs::path& out, const std::string& fingerprint) {
  const fs::path path = path_for(out), run = path / kRun;
  OCTAVO_ASSIGN(const bool held, FileLock::held(path / kLock));
  if (held) return fail(busy(path));
  std::error_code ignored;
  const int finished = count_finished(path);
  if (finished == 0 || !fs::exists(run, ignored)) return {};
  OCTAVO_ASSIGN(const std::string found, read_text_file(run));
  if (found == fingerprint) return {};
  return fail(of_another_run(path, finished));
}

Result<WorkFolder> WorkFolder::open_empty(const fs::path& out) {
  OCTAVO_ASSIGN(WorkFolder folder, lock(out));
  folder.clear();
  return folder;
}

// All but the lock. The run's name goes first: without it, what a kill leaves here is no run to go on with.
void WorkFolder::clear() const {
  std::error_code error, ignored;
  fs::remove(path_ / kRun, ignored);
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error))
    if (it->path().filename() != kLock) fs::remove_all(it->path(), ignored);
}

// Files that a killed run was writing (base/file.h).
void WorkFolder::clear_temporaries() const {
  std::error_code error, ignored;
  for (fs::directory_iterator it(path_, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().find(".tmp.") != std::string::npos) fs::remove(it->path(), ignored);
}

fs::path WorkFolder::file(int layer, std::string_view extension) const {
  return path_ / ((layer < 0 ? std::string("head") : fmt::format("layer-{:05}", layer)) + std::string(extension));
}

bool WorkFolder::has(int layer) const {
  std::error_code ignored;
  return fs::exists(file(layer), ignored);
}

int WorkFolder::finished() const {
  return count_finished(path_);
}

int64_t WorkFolder::finished_bytes(const fs::path& out) {
  int64_t bytes = 0;
  for_finished(path_for(out), [&](const fs::path& path) {
    std::error_code error;
    const uintmax_t size = fs::file_size(path, error);
    if (!error) bytes += static_cast<int64_t>(size);
  });
  return bytes;
}

Result<void> WorkFolder::save(int layer, const QuantizedLayer& weights, const LayerRecord& record) const {
  OCTAVO_TRY(write_statistics(file(layer, kStatistics), record.statistics));
  std::string notes;
  for (const std::string& note : record.notes) notes += note + "\n";
  OCTAVO_TRY(write_text_file(file(layer, kNotes), notes));
  const LayerFactors& factors = record.factors;
  std::vector<TensorToWrite> layout;
  for (const auto& [module, linear] : weights) {
    layout.push_back({codes_name(module), ElementType::kUint8, {static_cast<int64_t>(linear.matrix.codes.size())}});
    layout.push_back({scales_name(module), ElementType::kF32, {static_cast<int64_t>(linear.matrix.scales.size())}});
    layout.push_back({zeros_name(module), ElementType::kF32, {static_cast<int64_t>(linear.matrix.zeros.size())}});
    layout.push_back(
        {channels_name(module), ElementType::kInt32, {static_cast<int64_t>(linear.outliers.channels.size())}});
    layout.push_back({outliers_name(module), ElementType::kF32, {static_cast<int64_t>(linear.outliers.weight.size())}});
    layout.push_back({figures_name(module), ElementType::kF64, {kFigures}});
  }
  for (const auto& [input, name] : kFactorNames)
    if (const auto own = factors.find(input); own != factors.end())
      layout.push_back({std::string(name), ElementType::kF32, {static_cast<int64_t>(own->second.size())}});
  if (!record.expert_tokens.empty())
    layout.push_back({std::string(kExpertTokens), ElementType::kInt64, {std::ssize(record.expert_tokens)}});
  OCTAVO_ASSIGN(SafetensorsWriter writer, SafetensorsWriter::create(file(layer), std::move(layout)));
  if (!record.expert_tokens.empty())
    OCTAVO_TRY(writer.write(kExpertTokens, 0, std::as_bytes(std::span(record.expert_tokens))));
  for (const auto& [module, linear] : weights) {
    const OuterScale& outer = linear.matrix.outer;
    const double figures[kFigures] = {linear.input_scale, linear.objective, linear.rounding_objective,
                                      linear.error,       outer.factor,     outer.divisor};
    OCTAVO_TRY(writer.write(codes_name(module), 0, {linear.matrix.codes.data(), linear.matrix.codes.size()}));
    OCTAVO_TRY(writer.write(scales_name(module), 0, std::as_bytes(std::span(linear.matrix.scales))));
    OCTAVO_TRY(writer.write(zeros_name(module), 0, std::as_bytes(std::span(linear.matrix.zeros))));
    OCTAVO_TRY(writer.write(channels_name(module), 0, std::as_bytes(std::span(linear.outliers.channels))));
    OCTAVO_TRY(writer.write(outliers_name(module), 0, std::as_bytes(std::span(linear.outliers.weight))));
    OCTAVO_TRY(writer.write(figures_name(module), 0, std::as_bytes(std::span(figures))));
  }
  for (const auto& [input, name] : kFactorNames)
    if (const auto own = factors.find(input); own != factors.end())
      OCTAVO_TRY(writer.write(name, 0, std::as_bytes(std::span(own->second))));
  return writer.commit();
}

Result<StatisticsMap> WorkFolder::load_statistics(int layer) const {
  return read_statistics(file(layer, kStatistics));
}

Result<std::vector<std::string>> WorkFolder::load_notes(int layer) const {
  OCTAVO_ASSIGN(const std::string text, read_text_file(file(layer, kNotes)));
  std::vector<std::string> notes;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    notes.push_back(text.substr(begin, end - begin));
    begin = end == std::string::npos ? text.size() : end + 1;
  }
  return notes;
}

Result<LayerFactors> WorkFolder::load_factors(int layer) const {
  OCTAVO_ASSIGN(const auto reader, open_safetensors(file(layer)));
  LayerFactors factors;
  for (const auto& [input, name] : kFactorNames) {
    const TensorEntry* entry = reader->find(name);
    if (entry == nullptr || entry->shape.size() != 1) continue;
    std::vector<float>& own = factors[input];
    own.resize(static_cast<size_t>(entry->shape[0]));
    OCTAVO_TRY(reader->read_f32(*entry, 0, 1, own));
  }
  return factors;
}

Result<std::vector<int64_t>> WorkFolder::load_expert_tokens(int layer) const {
  OCTAVO_ASSIGN(const auto reader, open_safetensors(file(layer)));
  std::vector<int64_t> tokens;
  const TensorEntry* entry = reader->find(kExpertTokens);
  if (entry == nullptr || entry->shape.size() != 1) return tokens;
  tokens.resize(static_cast<size_t>(entry->shape[0]));
  OCTAVO_ASSIGN(const auto bytes,
                bytes_of(*reader, std::string(kExpertTokens), tokens.size() * sizeof(int64_t), file(layer)));
  if (!bytes.empty()) std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return tokens;
}

namespace {

// As many as there are, for a weight of `rows` rows.
Result<StoredOutliers> load_outliers(const TensorReader& reader, const std::string& module, int64_t rows,
                                     const fs::path& file) {
  const TensorEntry* entry = reader.find(channels_name(module));
  const size_t count = entry != nullptr && entry->shape.size() == 1 ? static_cast<size_t>(entry->shape[0]) : 0;
  OCTAVO_ASSIGN(const auto channels, bytes_of(reader, channels_name(module), count * sizeof(int32_t), file));
  OCTAVO_ASSIGN(const auto weight,
                bytes_of(reader, outliers_name(module), count * static_cast<size_t>(rows) * sizeof(float), file));
  StoredOutliers outliers;
  if (count == 0) return outliers;
  outliers.channels.resize(count);
  outliers.weight.resize(count * static_cast<size_t>(rows));
  std::memcpy(outliers.channels.data(), channels.data(), channels.size());
  std::memcpy(outliers.weight.data(), weight.data(), weight.size());
  return outliers;
}

}  // namespace

Result<QuantizedLayer> WorkFolder::load(int layer,
                                        const std::map<std::string, std::pair<TensorFormat, Shape>>& formats) const {
  OCTAVO_ASSIGN(const auto reader, open_safetensors(file(layer)));
  QuantizedLayer weights;
  for (const auto& [module, wanted] : formats) {
    const auto& [format, shape] = wanted;
    QuantizedLinear& linear = weights[module];
    linear.matrix = make_matrix(format, shape[0], shape[1]);
    OCTAVO_ASSIGN(const auto codes, bytes_of(*reader, codes_name(module), linear.matrix.codes.size(), file(layer)));
    OCTAVO_ASSIGN(const auto scales,
                  bytes_of(*reader, scales_name(module), linear.matrix.scales.size() * sizeof(float), file(layer)));
    OCTAVO_ASSIGN(const auto zeros,
                  bytes_of(*reader, zeros_name(module), linear.matrix.zeros.size() * sizeof(float), file(layer)));
    OCTAVO_ASSIGN(linear.outliers, load_outliers(*reader, module, shape[0], file(layer)));
    double figures[kFigures];
    OCTAVO_ASSIGN(const auto stored, bytes_of(*reader, figures_name(module), sizeof figures, file(layer)));
    std::memcpy(linear.matrix.codes.data(), codes.data(), codes.size());
    std::memcpy(linear.matrix.scales.data(), scales.data(), scales.size());
    if (!zeros.empty()) std::memcpy(linear.matrix.zeros.data(), zeros.data(), zeros.size());
    std::memcpy(figures, stored.data(), sizeof figures);
    linear.input_scale = static_cast<float>(figures[0]);
    linear.objective = figures[1];
    linear.rounding_objective = figures[2];
    linear.error = figures[3];
    linear.matrix.outer = {static_cast<float>(figures[4]), static_cast<float>(figures[5])};
  }
  return weights;
}

void WorkFolder::remove() {
  clear();
  lock_->remove();
  std::error_code ignored;
  fs::remove(path_, ignored);  // not empty where the next run is in it already
}

}  // namespace octavo
