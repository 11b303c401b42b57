// The KV cache of the output: its plan, its calibration, octavo_kv.json and the tensors that other engines read.
#include <fmt/format.h>

#include "base/file.h"
#include "quantize/quantizer.h"

namespace octavo {

// What the earlier folder has stays, as its activation scales do.
void Quantizer::carry_kv() {
  const EarlierScales& earlier = *options_.earlier;
  kv_calibration_ = earlier.kv_calibration;
  kv_scales_ = earlier.kv_scales;
  if (has_kv())
    summary_.notes.push_back(
        fmt::format("the KV cache is that of {}, its stored scales too (--kv with --calibrate makes new ones)",
                    earlier.path.string()));
}

bool Quantizer::has_kv() const {
  return options_.kv || kv_calibration_ || !kv_scales_.empty() ||
         (options_.earlier && !options_.earlier->kv_cache_scheme.empty());
}

Result<void> Quantizer::plan_kv() {
  if (!options_.kv) return {};
  if (!options_.calibrate)
    return fail({.what = "a KV cache with calibrated values needs calibration text",
                 .where = fmt::format("--kv {}", options_.kv->kv),
                 .remedy = "give some with --calibrate FILE; or leave --kv out and choose the cache when the model "
                           "runs: --kv-cache-dtype"});
  PrecisionPlan& plan = summary_.plan;
  for (KvPlan& kv : plan.kv) kv = {.k = plain_format(ElementType::kBf16), .v = plain_format(ElementType::kBf16)};
  if (auto applied = apply_kv_request(plan, {.kv_cache_dtype = options_.kv->kv}); !applied) {
    Error error = std::move(applied).error();
    error.where = "--kv";
    return fail(std::move(error));
  }
  bool lowered = false;
  for (KvPlan& kv : plan.kv) {
    kv.reason = fmt::format("--kv {}", options_.kv->kv);
    lowered |= kv.k.scaled() || kv.v.scaled();
    kv.k_options.temperature |= options_.kv->refit_temperature && kv.k.scaled();
  }
  if (!options_.kv->refit_temperature)
    for (const KvPlan& kv : plan.kv)
      if (kv.k_options.temperature)
        return fail({.what = "a query temperature that is not fitted",
                     .where = fmt::format("--kv {}", options_.kv->kv),
                     .remedy = "give --refit-temperature in its place"});
  if (!lowered)
    return fail({.what = "a KV cache without scales needs no calibration",
                 .where = fmt::format("--kv {}", options_.kv->kv),
                 .expected = "fp8_e4m3, fp8_e5m2 or int8 with options: fp8_e4m3:static"});
  if (has_kv_scale_tensors(plan)) kv_scales_.assign(plan.kv.size(), {.k = {1.0f}, .v = {1.0f}});  // until calibrated
  return {};
}

Result<KvCalibrator> Quantizer::kv_pass(const CalibrationSet& samples, const KvCalibrator::Groups& groups,
                                        PassOptions options) {
  PrecisionPlan plan = running_plan(summary_.plan, modules_, calibrate_);
  for (KvPlan& kv : plan.kv) kv = {.k = plain_format(ElementType::kBf16), .v = plain_format(ElementType::kBf16)};
  options.isa = calibrate_.isa;
  options.memory_limit = calibrate_.memory_limit;
  options.spill_folder = work_->path();
  options.progress = calibrate_.progress;
  KvCalibrator calibrator(checkpoint_.config(), summary_.plan, *options_.kv, options_.estimator, samples, groups,
                          pool_);
  CalibrationPass pass(checkpoint_, plan, samples, std::move(options), pool_);
  OCTAVO_TRY(pass.run(calibrator));
  return calibrator;
}

Result<void> Quantizer::calibrate_kv(const KvCalibrator::Groups& groups) {
  OCTAVO_ASSIGN(const KvCalibrator calibrator, kv_pass(*samples_, groups, {}));
  kv_calibration_ = calibrator.calibration();
  summary_.kv = calibrator.report();
  for (const std::string& note : summary_.kv->notes) summary_.notes.push_back(note);
  for (size_t layer = 0; layer < kv_scales_.size(); ++layer) {
    const KvPlan& kv = summary_.plan.kv[layer];
    kv_scales_[layer] = {.k = {kv_calibration_->scales(layer, true, kv.k, kv.k_options)[0]},
                         .v = {kv_calibration_->scales(layer, false, kv.v, kv.v_options)[0]}};
  }
  return {};
}

Result<void> Quantizer::write_kv(const std::filesystem::path& folder, ShardedWriter& writer) const {
  for (size_t layer = 0; layer < kv_scales_.size(); ++layer)
    for (const bool key : {true, false})
      if (const auto& scales = key ? kv_scales_[layer].k : kv_scales_[layer].v; !scales.empty())
        OCTAVO_TRY(writer.write(kv_scale_name(layer, key), 0, std::as_bytes(std::span(scales))));
  if (!kv_calibration_) return {};
  return write_text_file(folder / kKvCalibrationName, kv_calibration_text(*kv_calibration_, checkpoint_.config()));
}

}  // namespace octavo
