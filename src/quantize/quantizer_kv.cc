// The KV cache of the output: its plan, its calibration, octavo_kv.json and the tensors that other engines read.
#include <fmt/format.h>

#include "base/file.h"
#include "quantize/quantizer.h"

namespace octavo {

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
  return {};
}

Result<void> Quantizer::calibrate_kv(const CalibrationSet& samples, const KvCalibrator::Groups& groups) {
  CalibrateOptions options = calibrate_;
  const PrecisionPlan run = running_plan(summary_.plan, modules_, options);
  PrecisionPlan pass_plan = run;
  for (KvPlan& kv : pass_plan.kv) kv = {.k = plain_format(ElementType::kBf16), .v = plain_format(ElementType::kBf16)};
  PassOptions pass_options;
  pass_options.isa = options.isa;
  pass_options.memory_limit = options.memory_limit;
  pass_options.spill_folder = work_->path();
  pass_options.progress = options.progress;
  KvCalibrator calibrator(checkpoint_.config(), summary_.plan, *options_.kv, options_.estimator, groups, pool_);
  CalibrationPass pass(checkpoint_, pass_plan, samples, pass_options, pool_);
  OCTAVO_TRY(pass.run(calibrator));
  kv_calibration_ = calibrator.calibration();
  summary_.kv = calibrator.report();
  return {};
}

Result<void> Quantizer::write_kv(const std::filesystem::path& folder, ShardedWriter& writer) const {
  if (!kv_calibration_) return {};
  if (has_kv_scale_tensors(summary_.plan))
    for (size_t layer = 0; layer < summary_.plan.kv.size(); ++layer)
      for (const bool key : {true, false}) {
        const KvPlan& kv = summary_.plan.kv[layer];
        const std::vector<float> scales =
            kv_calibration_->scales(layer, key, key ? kv.k : kv.v, key ? kv.k_options : kv.v_options);
        OCTAVO_TRY(writer.write(kv_scale_name(layer, key), 0, std::as_bytes(std::span(scales).first(1))));
      }
  return write_text_file(folder / kKvCalibrationName, kv_calibration_text(*kv_calibration_, checkpoint_.config()));
}

}  // namespace octavo
