// Normalizer and pre-tokenizer of a tokenizer.json: from a text to the pieces that BPE may not cross.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/split_pattern.h"

namespace octavo {

// GPT-2's splitting rule, which a ByteLevel step with use_regex applies.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// What happens to the matches of a Split step.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

class Normalizer {
 public:
  // null, NFC, Prepend, Replace of a String, or a Sequence of these.
  static Result<Normalizer> from_json(const nlohmann::ordered_json& json);
  bool changes_nothing() const { return steps_.empty(); }
  std::string apply(std::string_view text) const;

 private:
  enum class Kind { kNfc, kPrepend, kReplace };
  struct Step {
    Kind kind;
    std::string pattern, content;
  };
  Result<void> add(const nlohmann::ordered_json& json);
  std::vector<Step> steps_;
};

class PreTokenizer {
 public:
  // Byte-level: Split, Digits, ByteLevel, or a Sequence of these that ends with ByteLevel. Else null, Split, Digits,
  // Metaspace, or a Sequence of these.
  static Result<PreTokenizer> from_json(const nlohmann::ordered_json& json, bool byte_level = true);

  // Scratch memory of one caller, so that splitting allocates little.
  struct Scratch {
    std::vector<TextRange> ranges, next, matches;
    std::string subject, prefixed;
  };
  // Splits `text` (valid UTF-8); at_start: nothing stands before it. The ranges are left in scratch.ranges; they point
  // into the text returned, which is `text` or lives in scratch.
  std::string_view split(std::string_view text, Scratch& scratch, bool at_start = true) const;

 private:
  enum class Kind { kRegex, kLiteral, kDigits };
  struct Step {
    Kind kind;
    SplitBehavior behavior;
    bool invert;
    std::vector<SplitPattern> pattern;  // none for digits
  };
  Result<void> add(const nlohmann::ordered_json& json, bool last);
  Result<void> add_split(const nlohmann::ordered_json& json);
  Result<void> add_byte_level(const nlohmann::ordered_json& json);
  static void find_digits(std::string_view text, std::vector<TextRange>& matches);
  static void cut(TextRange range, const Step& step, const std::vector<TextRange>& matches,
                  std::vector<TextRange>& out);
  static std::string_view prefix_space(std::string_view text, Scratch& scratch);
  Result<void> add_metaspace(const nlohmann::ordered_json& json);
  std::string_view put_metaspace(std::string_view text, Scratch& scratch, bool at_start) const;

  enum class Prepend { kFirst, kNever, kAlways };
  std::vector<Step> steps_;
  size_t steps_before_prefix_ = 0;
  bool byte_level_ = true, add_prefix_space_ = false;
  std::string metaspace_;  // what stands for a space; empty: no such step
  Prepend prepend_ = Prepend::kNever;
};

}  // namespace octavo
