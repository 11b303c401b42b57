#include "quantize/quantize_checkpoint.h"

#include "checkpoint/output_folder.h"
#include "quantize/quantizer.h"

namespace octavo {
namespace {

Result<void> make(Quantizer& quantizer, const std::filesystem::path& model, const std::filesystem::path& out) {
  OCTAVO_ASSIGN(const DiskNeed need, quantizer.disk_need(out));
  OCTAVO_TRY(check_space(out, need.free_space()));
  OCTAVO_TRY(quantizer.calibrate());
  OCTAVO_ASSIGN(OutputFolder folder, OutputFolder::create(model, out));
  OCTAVO_TRY(quantizer.write(folder.path()));
  return folder.finish();
}

}  // namespace

Result<QuantizeSummary> quantize_checkpoint(const Checkpoint& checkpoint, const std::filesystem::path& out,
                                            const QuantizeOptions& options,
                                            const std::function<void(const QuantizeProgress&)>& progress) {
  OCTAVO_TRY(check_output(checkpoint.path(), out));
  OCTAVO_ASSIGN(const QuantizeSource source, QuantizeSource::open(checkpoint, options));
  Quantizer quantizer(source, options, progress);
  OCTAVO_TRY(quantizer.prepare());
  OCTAVO_TRY(OutputFolder::check_free(out));
  OCTAVO_TRY(quantizer.open_work(out));
  Result<void> made = make(quantizer, checkpoint.path(), out);
  if (!made) return fail(quantizer.ended(std::move(made).error()));
  quantizer.remove_work();
  return quantizer.summary();
}

}  // namespace octavo
