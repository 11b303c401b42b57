// A model and a text to calibrate it on, for tests of calibrated quantization.
#pragma once

#include <fstream>
#include <set>

#include "model_folder.h"
#include "quantize/quantize_checkpoint.h"
#include "support/byte_tokenizer_json.h"

namespace octavo {

class CalibratedFolder : public testing::Test {
 protected:
  void make(const Change& change = {}, std::string_view model = kOddModel) {
    std::string config(model);
    config.replace(config.find("\"vocab_size\": 96"), 16, "\"vocab_size\": 320");
    write_model(model_, config, ElementType::kBf16, change);
    write(model_ / "tokenizer.json", byte_tokenizer_json({}, 320, {1, 2}));
    std::string text;
    for (int i = 0; i < 400; ++i) text += "line " + std::to_string(i * i * 7919) + " of this text\n\n";
    write(folder_ / "text.txt", text);
  }
  static void write(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }
  QuantizeOptions options(const std::string& scheme = "fp8") const {
    QuantizeOptions options{.plan = {.scheme = scheme}, .threads = 2};
    options.calibrate.emplace();
    options.calibrate->data = {.sources = {{folder_ / "text.txt", 1}}, .samples = 6, .length = 48, .seed = 3};
    options.calibrate->isa = best_isa();
    return options;
  }
  Result<QuantizeSummary> run(const std::string& name, const QuantizeOptions& options) {
    return quantize_checkpoint(open_model(model_), folder_ / name, options);
  }
  // The error's text; and nothing stands where the output would.
  std::string error_of(const QuantizeOptions& options, const std::string& name = "refused") {
    const auto summary = run(name, options);
    EXPECT_FALSE(std::filesystem::exists(folder_ / name));
    return summary ? "" : summary.error().message();
  }
  std::string bytes_of(const std::string& name, const std::string& file = "model.safetensors") const {
    return read_text_file(folder_ / name / file).value();
  }
  // Everything beside the model, hidden or not.
  std::set<std::string> siblings() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      names.insert(entry.path().filename().string());
    return names;
  }
  // Ends the run when so many samples have passed: six to a walk, five walks to a layer.
  struct Stop {};
  void stop_at(double samples, const std::string& name, QuantizeOptions options) {
    options.calibrate->progress = [&](double done, double, std::string_view) {
      if (done == samples) throw Stop();
    };
    EXPECT_THROW((void)run(name, options), Stop);
  }

  TestFolder folder_;
  std::filesystem::path model_ = folder_ / "model";
};

}  // namespace octavo
