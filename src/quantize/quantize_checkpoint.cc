#include "quantize/quantize_checkpoint.h"

#include <fmt/format.h>

#include "checkpoint/output_folder.h"
#include "quantize/quantizer.h"

namespace octavo {

Result<void> check_space(const std::filesystem::path& out, int64_t bytes) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::absolute(out, error).parent_path();
  const std::filesystem::space_info space = std::filesystem::space(parent, error);
  if (error || space.available >= static_cast<uintmax_t>(bytes)) return {};
  return fail({.what = "not enough disk space",
               .where = parent.string(),
               .found = fmt::format("{} MB free", space.available / 1'000'000),
               .expected = fmt::format("{} MB", (bytes + 999'999) / 1'000'000)});
}

Result<QuantizeSummary> quantize_checkpoint(const Checkpoint& checkpoint, const std::filesystem::path& out,
                                            const QuantizeOptions& options,
                                            const std::function<void(const QuantizeProgress&)>& progress) {
  OCTAVO_TRY(check_output(checkpoint.path(), out));
  OCTAVO_ASSIGN(const QuantizeSource source, QuantizeSource::open(checkpoint, options));
  Quantizer quantizer(source, options, progress);
  OCTAVO_TRY(quantizer.prepare());
  // A calibration's finished layers lie on the disk as well until the output is complete.
  OCTAVO_TRY(check_space(out, quantizer.bytes_after() * (options.calibrate ? 2 : 1)));
  OCTAVO_TRY(quantizer.calibrate(out));
  OCTAVO_ASSIGN(OutputFolder folder, OutputFolder::create(checkpoint.path(), out));
  OCTAVO_TRY(quantizer.write(folder.path()));
  OCTAVO_TRY(folder.finish());
  quantizer.remove_work();
  return quantizer.summary();
}

}  // namespace octavo
