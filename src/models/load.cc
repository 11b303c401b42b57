// Loading a decoder: every tensor of the checkpoint is used once, or named in the report.
#include "models/decoder.h"

namespace octavo {

Result<Decoder> Decoder::load(const Checkpoint& checkpoint, const PrecisionPlan& plan, Isa isa, ThreadPool& pool,
                              const std::function<void(LoadProgress)>& progress) {
  const ModelConfig& c = checkpoint.config();
  Decoder decoder;
  decoder.config_ = &c;
  decoder.runner_ = std::make_unique<LayerRunner>(c, isa);
  const LayerLoader loader(checkpoint, plan, isa, pool, decoder.report_);

  OCTAVO_ASSIGN(decoder.embedding_, load_embedding(checkpoint, plan, decoder.report_));
  const int total = static_cast<int>(c.num_layers);
  for (int i = 0; i < total; ++i) {
    if (progress) progress({i, total});
    OCTAVO_ASSIGN(Layer layer, loader.load(i));
    decoder.layers_.push_back(std::move(layer));
  }
  decoder.kv_clipping_ = std::make_unique<KvClipping[]>(decoder.layers_.size());
  OCTAVO_ASSIGN(decoder.final_norm_, loader.final_norm());
  OCTAVO_ASSIGN(decoder.head_, loader.group({}));
  OCTAVO_ASSIGN(decoder.report_.unused, checkpoint.unused());
  const std::vector<std::string>& notes = checkpoint.notes();
  decoder.report_.notes.assign(notes.begin(), notes.end());
  for (const std::string& note : plan.notes) decoder.report_.notes.push_back(note);
  if (progress) progress({total, total});
  return decoder;
}

}  // namespace octavo
