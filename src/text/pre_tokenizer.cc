#include "text/pre_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "text/spec_json.h"
#include "text/utf8.h"

namespace octavo {
namespace {

constexpr std::string_view kSupported = "Sequence, Split, Digits, ByteLevel";
constexpr std::string_view kSupportedPieces = "Sequence, Split, Digits, Metaspace or null";

std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t found = text.find(pattern, at);
    out += text.substr(at, found - at);
    if (found == std::string_view::npos) return out;
    out += content;
    at = found + pattern.size();
  }
}

Result<SplitBehavior> behavior_from(const std::string& name) {
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return fail({.what = "unknown behavior of a Split",
               .where = "pre_tokenizer",
               .found = name,
               .expected = "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous"});
}

}  // namespace

Result<Normalizer> Normalizer::from_json(const Json& json) {
  Normalizer result;
  if (!json.is_null()) OCTAVO_TRY(result.add(json));
  return result;
}

Result<void> Normalizer::add(const Json& json) {
  OCTAVO_ASSIGN(const std::string type, type_of(json, "normalizer"));
  if (type == "Sequence") {
    OCTAVO_ASSIGN(const Json* parts, array_member(json, "normalizers", "normalizer"));
    for (const Json& part : *parts) OCTAVO_TRY(add(part));
    return {};
  }
  Step step{Kind::kNfc, {}, {}};
  if (type == "Prepend") {
    step.kind = Kind::kPrepend;
    OCTAVO_ASSIGN(step.content, text_member(json, "prepend", "normalizer"));
  } else if (type == "Replace") {
    step.kind = Kind::kReplace;
    const auto pattern = json.find("pattern");
    if (pattern == json.end() || !pattern->is_object() || !pattern->contains("String"))
      return unsupported_part("normalizer", "Replace without a String", "Replace of a String");
    OCTAVO_ASSIGN(step.pattern, text_member(*pattern, "String", "normalizer"));
    OCTAVO_ASSIGN(step.content, text_member(json, "content", "normalizer"));
    if (step.pattern.empty()) return unsupported_part("normalizer", "Replace of nothing", "Replace of a String");
  } else if (type != "NFC") {
    return unsupported_part("normalizer", type, "NFC, Prepend, Replace, Sequence or null");
  }
  steps_.push_back(std::move(step));
  return {};
}

std::string Normalizer::apply(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (step.kind == Kind::kNfc) out = to_nfc(out);
    if (step.kind == Kind::kPrepend && !out.empty()) out.insert(0, step.content);
    if (step.kind == Kind::kReplace) out = replace_all(out, step.pattern, step.content);
  }
  return out;
}

Result<PreTokenizer> PreTokenizer::from_json(const Json& json, bool byte_level) {
  PreTokenizer result;
  result.byte_level_ = byte_level;
  if (json.is_null() && !byte_level) return result;
  if (json.is_null()) return unsupported_part("pre_tokenizer", "null", "one that ends with ByteLevel");
  OCTAVO_TRY(result.add(json, true));
  return result;
}

Result<void> PreTokenizer::add(const Json& json, bool last) {
  OCTAVO_ASSIGN(const std::string type, type_of(json, "pre_tokenizer"));
  if (type == "Sequence") {
    OCTAVO_ASSIGN(const Json* parts, array_member(json, "pretokenizers", "pre_tokenizer"));
    if (byte_level_ && last && parts->empty())
      return unsupported_part("pre_tokenizer", "an empty Sequence", "one that ends with ByteLevel");
    for (size_t i = 0; i < parts->size(); ++i) OCTAVO_TRY(add((*parts)[i], last && i + 1 == parts->size()));
    return {};
  }
  const bool is_byte_level = type == "ByteLevel";
  if (byte_level_ && is_byte_level != last)
    return unsupported_part("pre_tokenizer",
                            last ? type + " as the last step" : std::string("ByteLevel before the last step"),
                            fmt::format("{}; ByteLevel exactly once, as the last step", kSupported));
  if (is_byte_level && byte_level_) return add_byte_level(json);
  if (type == "Split") return add_split(json);
  if (type == "Digits") {
    OCTAVO_ASSIGN(const bool individual, bool_member(json, "individual_digits", false, "pre_tokenizer"));
    const auto behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
    steps_.push_back({Kind::kDigits, behavior, false, {}});
    return {};
  }
  if (type == "Metaspace" && !byte_level_) return add_metaspace(json);
  return unsupported_part("pre_tokenizer", type, byte_level_ ? kSupported : kSupportedPieces);
}

// {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true}; before that add_prefix_space.
Result<void> PreTokenizer::add_metaspace(const Json& json) {
  constexpr std::string_view kPart = "pre_tokenizer";
  if (!metaspace_.empty()) return unsupported_part(kPart, "two Metaspace steps", "one");
  OCTAVO_ASSIGN(metaspace_, text_member(json, "replacement", kPart));
  if (metaspace_.empty()) return unsupported_part(kPart, "an empty replacement", "a character");
  OCTAVO_ASSIGN(const bool prefix, bool_member(json, "add_prefix_space", true, kPart));
  prepend_ = prefix ? Prepend::kAlways : Prepend::kNever;
  if (json.contains("prepend_scheme")) {
    OCTAVO_ASSIGN(const std::string scheme, text_member(json, "prepend_scheme", kPart));
    if (scheme != "first" && scheme != "never" && scheme != "always")
      return unsupported_part(kPart, scheme, "prepend_scheme first, never or always");
    prepend_ = scheme == "first" ? Prepend::kFirst : scheme == "never" ? Prepend::kNever : Prepend::kAlways;
  }
  OCTAVO_ASSIGN(const bool split, bool_member(json, "split", true, kPart));
  steps_before_prefix_ = steps_.size();
  if (!split) return {};
  OCTAVO_ASSIGN(SplitPattern pattern, SplitPattern::literal(metaspace_));
  Step step{Kind::kLiteral, SplitBehavior::kMergedWithNext, false, {}};
  step.pattern.push_back(std::move(pattern));
  steps_.push_back(std::move(step));
  return {};
}

Result<void> PreTokenizer::add_split(const Json& json) {
  OCTAVO_ASSIGN(const std::string behavior_name, text_member(json, "behavior", "pre_tokenizer"));
  OCTAVO_ASSIGN(const SplitBehavior behavior, behavior_from(behavior_name));
  OCTAVO_ASSIGN(const bool invert, bool_member(json, "invert", false, "pre_tokenizer"));
  const auto pattern = json.find("pattern");
  const bool is_object = pattern != json.end() && pattern->is_object();
  const bool is_regex = is_object && pattern->contains("Regex");
  if (!is_regex && !(is_object && pattern->contains("String")))
    return fail({.what = "Split has no pattern",
                 .where = "pre_tokenizer",
                 .expected = R"({"Regex": "..."} or {"String": "..."})"});
  OCTAVO_ASSIGN(const std::string text, text_member(*pattern, is_regex ? "Regex" : "String", "pre_tokenizer"));
  auto compiled = is_regex ? SplitPattern::regex(text) : SplitPattern::literal(text);
  if (!compiled) return fail(std::move(compiled).error());
  Step step{is_regex ? Kind::kRegex : Kind::kLiteral, behavior, invert, {}};
  step.pattern.push_back(std::move(*compiled));
  steps_.push_back(std::move(step));
  return {};
}

Result<void> PreTokenizer::add_byte_level(const Json& json) {
  OCTAVO_ASSIGN(add_prefix_space_, bool_member(json, "add_prefix_space", true, "pre_tokenizer"));
  OCTAVO_ASSIGN(const bool use_regex, bool_member(json, "use_regex", true, "pre_tokenizer"));
  steps_before_prefix_ = steps_.size();
  if (!use_regex) return {};
  OCTAVO_ASSIGN(SplitPattern pattern, SplitPattern::regex(kGpt2Pattern));
  Step step{Kind::kRegex, SplitBehavior::kIsolated, false, {}};
  step.pattern.push_back(std::move(pattern));
  steps_.push_back(std::move(step));
  return {};
}

std::string_view PreTokenizer::split(std::string_view text, Scratch& scratch, bool at_start) const {
  scratch.ranges.assign(1, {0, text.size()});
  if (text.empty()) scratch.ranges.clear();
  // Expressions look at the stand-ins, positions are the same in the real text.
  std::string_view subject = with_older_stand_ins(text, scratch.subject) ? scratch.subject : text;
  for (size_t i = 0; i <= steps_.size(); ++i) {
    if (i == steps_before_prefix_ && (add_prefix_space_ || !metaspace_.empty())) {
      text = add_prefix_space_ ? prefix_space(text, scratch) : put_metaspace(text, scratch, at_start);
      subject = with_older_stand_ins(text, scratch.subject) ? scratch.subject : text;
    }
    if (i == steps_.size()) break;
    const Step& step = steps_[i];
    scratch.next.clear();
    for (const TextRange range : scratch.ranges) {
      scratch.matches.clear();
      const size_t size = range.end - range.begin;
      if (step.kind == Kind::kDigits) find_digits(text.substr(range.begin, size), scratch.matches);
      if (step.kind == Kind::kRegex) step.pattern[0].find_all(subject.substr(range.begin, size), scratch.matches);
      if (step.kind == Kind::kLiteral) step.pattern[0].find_all(text.substr(range.begin, size), scratch.matches);
      cut(range, step, scratch.matches, scratch.next);
    }
    scratch.ranges.swap(scratch.next);
  }
  return text;
}

void PreTokenizer::find_digits(std::string_view text, std::vector<TextRange>& matches) {
  for (size_t i = 0; i < text.size();) {
    int size = 1;
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint32_t c = byte < 0x80 ? byte : code_point_at(text, i, &size);
    if (is_numeric(c)) matches.push_back({i, i + static_cast<size_t>(size)});
    i += static_cast<size_t>(size);
  }
}

// Cuts `range` along the matches (relative to it). Empty parts are dropped.
void PreTokenizer::cut(TextRange range, const Step& step, const std::vector<TextRange>& matches,
                       std::vector<TextRange>& out) {
  const size_t first = out.size();
  bool previous_match = false, any = false;
  bool next_joins = false;  // kMergedWithNext: the last part waits for what follows
  const auto part = [&](size_t begin, size_t end, bool is_match) {
    is_match = is_match != step.invert;
    const TextRange absolute{range.begin + begin, range.begin + end};
    bool join = false;
    switch (step.behavior) {
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kRemoved:
        if (is_match) return;
        break;
      case SplitBehavior::kContiguous:
        join = any && is_match == previous_match;
        break;
      case SplitBehavior::kMergedWithPrevious:
        join = any && is_match && !previous_match;
        break;
      case SplitBehavior::kMergedWithNext:
        join = next_joins && !is_match;
        break;
    }
    next_joins = is_match;
    previous_match = is_match;
    any = true;
    if (join) {
      out.back().end = absolute.end;
    } else {
      out.push_back(absolute);
    }
  };
  size_t at = 0;
  for (const TextRange match : matches) {
    if (match.begin > at) part(at, match.begin, false);
    part(match.begin, match.end, true);
    at = match.end;
  }
  if (range.begin + at < range.end) part(at, range.end - range.begin, false);
  const auto begin = out.begin() + static_cast<std::ptrdiff_t>(first);
  out.erase(std::remove_if(begin, out.end(), [](const TextRange& r) { return r.begin == r.end; }), out.end());
}

// Spaces become the stand-in, and ranges that do not begin with one get one where the scheme says so.
std::string_view PreTokenizer::put_metaspace(std::string_view text, Scratch& scratch, bool at_start) const {
  std::string out;
  for (TextRange& range : scratch.ranges) {
    const size_t begin = out.size();
    const std::string replaced = replace_all(text.substr(range.begin, range.end - range.begin), " ", metaspace_);
    const bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && at_start && range.begin == 0);
    if (wanted && !replaced.starts_with(metaspace_)) out += metaspace_;
    out += replaced;
    range = {begin, out.size()};
  }
  scratch.prefixed = std::move(out);
  return scratch.prefixed;
}

// Each range that does not begin with a space gets one.
std::string_view PreTokenizer::prefix_space(std::string_view text, Scratch& scratch) {
  std::string out;
  for (TextRange& range : scratch.ranges) {
    const size_t begin = out.size();
    if (text[range.begin] != ' ') out += ' ';
    out.append(text.substr(range.begin, range.end - range.begin));
    range = {begin, out.size()};
  }
  scratch.prefixed = std::move(out);
  return scratch.prefixed;
}

}  // namespace octavo
