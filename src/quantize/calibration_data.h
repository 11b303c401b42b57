// Calibration text: files in the proportions of the traffic, sampled by a seed, tokenized as the server tokenizes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "text/tokenizer.h"

namespace octavo {

struct CalibrationSource {
  std::filesystem::path path;
  double weight = 1.0;  // share of the tokens, relative to the other files
};

// "a.jsonl:0.7,b.txt:0.3"; a file without a weight has weight 1.
Result<std::vector<CalibrationSource>> parse_calibration_sources(std::string_view text);

struct CalibrationDataOptions {
  std::vector<CalibrationSource> sources;
  int64_t samples = 512, length = 2048;  // sequences, and tokens of each
  uint64_t seed = 0;
};

struct CalibrationSet {
  struct File {
    std::string path;
    double weight = 0;
    int64_t documents = 0, documents_used = 0, tokens_used = 0, samples = 0;
  };
  struct Origin {
    size_t file;
    std::vector<int64_t> lines;  // where the documents begin that it holds tokens of, in its order
  };
  std::vector<std::vector<TokenId>> samples;
  std::vector<Origin> origins;  // of the samples
  std::vector<File> files;
  std::vector<std::string> notes;  // a file that ran dry, little text

  int64_t tokens() const;
  // "calibration sample 3 (chat.jsonl, what begins in lines 7, 120)", for errors.
  std::string describe_sample(int64_t sample) const;
  // Tokens at positions below 512, 2048, 8192, 32768 and beyond: what lengths were seen.
  struct Coverage {
    int64_t begin, end, tokens;    // positions [begin, end); end 0: no limit
    std::string describe() const;  // "positions 512 to 2047"
  };
  std::vector<Coverage> coverage() const;
};

// Documents of each file (a line of a .jsonl file: {"text"} or {"messages"} through the chat template; of another file,
// passages of some kilobytes that end at an empty line where there is one) in an order drawn by the seed, one after the
// other, cut into samples of `length` tokens. Each sample comes from the file that lags furthest behind its weight.
// Errors: no text, fewer tokens than kMinCalibrationTokens, a line that is neither, a length beyond the model's
// context.
inline constexpr int64_t kMinCalibrationTokens = 128;
inline constexpr int64_t kFewCalibrationTokens = 16384;  // below this: a note
inline constexpr int64_t kFewBandTokens = 4096;  // of a band of positions that the model's context reaches: a note
Result<CalibrationSet> read_calibration_set(const std::filesystem::path& model, const ModelConfig& config,
                                            const CalibrationDataOptions& options);

}  // namespace octavo
