#include "quantize/calibration_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <optional>
#include <span>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "base/random.h"
#include "text/chat_template.h"

namespace octavo {
namespace {

// strftime_now of chat templates gives this day, so that a run can be repeated: 1 January 2025.
constexpr int64_t kTemplateTime = 1'735'689'600;

// The model's way from a document to tokens.
class DocumentEncoder {
 public:
  static Result<DocumentEncoder> open(const std::filesystem::path& model, const ModelConfig& config) {
    OCTAVO_ASSIGN(Tokenizer tokenizer, Tokenizer::open(model));
    DocumentEncoder encoder(std::move(tokenizer), config.vocab_size);
    OCTAVO_ASSIGN(encoder.format_, read_chat_format(model));
    if (!encoder.format_.template_source.empty()) {
      OCTAVO_ASSIGN(encoder.template_,
                    ChatTemplate::parse(encoder.format_.template_source, "chat template of " + model.string()));
    }
    return encoder;
  }

  Result<std::vector<TokenId>> text(std::string_view text, const std::string& where) const {
    return checked(tokenizer_.encode(text, true, false), where);
  }

  Result<std::vector<TokenId>> chat(const Json& messages, const std::string& where) const {
    if (!template_)
      return fail({.what = "the model has no chat template for these messages",
                   .where = where,
                   .remedy = "give {\"text\": ...} lines, or add chat_template.jinja to the model's folder"});
    Json variables = {{"messages", messages}, {"add_generation_prompt", false}};
    variables["bos_token"] = format_.bos_token;
    variables["eos_token"] = format_.eos_token;
    variables["pad_token"] = format_.pad_token;
    variables["unk_token"] = format_.unk_token;
    auto rendered = template_->render(variables, {}, kTemplateTime);
    if (!rendered) {
      Error error = std::move(rendered).error();
      error.where = where + (error.where.empty() ? "" : ", " + error.where);
      return fail(std::move(error));
    }
    return checked(tokenizer_.encode(*rendered, false), where);
  }

 private:
  DocumentEncoder(Tokenizer tokenizer, int64_t vocab_size)
      : tokenizer_(std::move(tokenizer)), vocab_size_(vocab_size) {}

  Result<std::vector<TokenId>> checked(std::vector<TokenId> tokens, const std::string& where) const {
    for (const TokenId id : tokens)
      if (id < 0 || id >= vocab_size_)
        return fail({.what = "token id outside the model's vocabulary",
                     .where = where,
                     .found = fmt::format("{}", id),
                     .expected = fmt::format("0 to {}", vocab_size_ - 1),
                     .remedy = "the tokenizer and the weights are of different models"});
    return tokens;
  }

  Tokenizer tokenizer_;
  int64_t vocab_size_;
  ChatFormat format_;
  std::optional<ChatTemplate> template_;
};

// The tokens of one file, document after document in a drawn order, tokenized as they are needed.
class TokenStream {
 public:
  static Result<TokenStream> open(const CalibrationSource& source, const DocumentEncoder& encoder, uint64_t seed) {
    OCTAVO_ASSIGN(MappedFile file, MappedFile::open(source.path));
    TokenStream stream(source, std::move(file), encoder);
    stream.json_lines_ = source.path.extension() == ".jsonl";
    if (stream.json_lines_)
      stream.find_lines();
    else
      stream.find_passages();
    stream.mapped_.forget(0, stream.text_.size());
    if (stream.documents_.empty())
      return fail({.what = "calibration file is empty",
                   .where = source.path.string(),
                   .expected = "text, or lines of {\"text\": ...} or {\"messages\": [...]} in a .jsonl file",
                   .remedy = "give another file with --calibrate"});
    Random random(seed);
    for (size_t i = stream.documents_.size(); i > 1; --i)
      std::swap(stream.documents_[i - 1], stream.documents_[random.below(i)]);
    stream.file_.documents = static_cast<int64_t>(stream.documents_.size());
    return stream;
  }

  // The next `length` tokens; fewer when the file ends; empty when it has ended. `lines`: where their documents begin.
  Result<std::vector<TokenId>> take(int64_t length, std::vector<int64_t>& lines) {
    while (static_cast<int64_t>(pending_.size()) < length && next_ < documents_.size()) {
      OCTAVO_ASSIGN(const std::vector<TokenId> tokens, encode(documents_[next_]));
      pending_.insert(pending_.end(), tokens.begin(), tokens.end());
      if (!tokens.empty()) pending_lines_.emplace_back(documents_[next_].line, std::ssize(tokens));
      ++next_;
    }
    const auto count = static_cast<std::ptrdiff_t>(std::min(length, static_cast<int64_t>(pending_.size())));
    std::vector<TokenId> taken(pending_.begin(), pending_.begin() + count);
    pending_.erase(pending_.begin(), pending_.begin() + count);
    for (int64_t left = count; left > 0;) {
      auto& [line, tokens] = pending_lines_.front();
      lines.push_back(line);
      const int64_t used = std::min(left, tokens);
      left -= used;
      tokens -= used;
      if (tokens == 0) pending_lines_.pop_front();
    }
    file_.documents_used = static_cast<int64_t>(next_);
    file_.tokens_used += count;
    if (count > 0) ++file_.samples;
    if (count < length) dry_ = true;
    return taken;
  }

  bool dry() const { return dry_; }
  const CalibrationSet::File& file() const { return file_; }

 private:
  struct Document {
    size_t begin, size;
    int64_t line;  // of the file, from 1 on: where it begins
  };

  TokenStream(const CalibrationSource& source, MappedFile mapped, const DocumentEncoder& encoder)
      : encoder_(&encoder),
        mapped_(std::move(mapped)),
        text_(reinterpret_cast<const char*>(mapped_.bytes().data()), mapped_.bytes().size()) {
    file_.path = source.path.string();
    file_.weight = source.weight;
  }

  void find_lines() {
    int64_t line = 1;
    for (size_t begin = 0; begin < text_.size(); ++line) {
      const size_t end = std::min(text_.find('\n', begin), text_.size());
      if (text_.find_first_not_of(" \t\r", begin) < end) documents_.push_back({begin, end - begin, line});
      begin = end + 1;
    }
  }

  // Plain text: passages of some kilobytes that end at an empty line (one of blanks alone is empty), or at the end of
  // any line where they grow beyond that.
  void find_passages() {
    constexpr size_t kPassage = 4096, kMost = 4 * kPassage;
    int64_t line = 1;
    Document passage{0, 0, 0};
    for (size_t at = 0; at < text_.size(); ++line) {
      const size_t end = std::min(text_.find('\n', at), text_.size() - 1) + 1;
      const std::string_view own = text_.substr(at, end - at);
      const bool empty = own.find_first_not_of(" \t\r\n") == std::string_view::npos;
      if (passage.size == 0 && !empty) passage = {at, 0, line};
      if (passage.line > 0) passage.size = end - passage.begin;
      at = end;
      if (passage.size < (empty ? kPassage : kMost)) continue;
      documents_.push_back(std::exchange(passage, {0, 0, 0}));
    }
    if (passage.size > 0) documents_.push_back(passage);
  }

  Result<std::vector<TokenId>> encode(const Document& document) const {
    const std::string_view text = text_.substr(document.begin, document.size);
    if (!json_lines_) return encoder_->text(text, file_.path);
    const std::string where = fmt::format("{}, line {}", file_.path, document.line);
    OCTAVO_ASSIGN(const Json object, parse_json(text, where));
    if (object.is_object()) {
      if (const auto found = object.find("text"); found != object.end() && found->is_string())
        return encoder_->text(found->get<std::string>(), where);
      if (const auto found = object.find("messages"); found != object.end() && found->is_array())
        return encoder_->chat(*found, where);
    }
    return fail({.what = "calibration line has no text",
                 .where = where,
                 .found = object.is_object() ? "an object without them" : std::string(object.type_name()),
                 .expected = "{\"text\": \"...\"} or {\"messages\": [...]}"});
  }

  const DocumentEncoder* encoder_;
  CalibrationSet::File file_;
  MappedFile mapped_;
  std::string_view text_;  // of mapped_
  bool json_lines_ = false, dry_ = false;
  std::vector<Document> documents_;
  size_t next_ = 0;
  std::vector<TokenId> pending_;
  std::deque<std::pair<int64_t, int64_t>> pending_lines_;  // of the pending tokens: line of the document, tokens of it
};

Result<void> check_options(const ModelConfig& config, const CalibrationDataOptions& options) {
  if (options.samples < 1 || options.samples > 1'000'000)
    return fail({.what = "number of samples is out of range",
                 .where = "--samples",
                 .found = fmt::format("{}", options.samples),
                 .expected = "1 to 1000000"});
  if (options.length < 2 || options.length > config.context_length())
    return fail({.what = "sample length is out of range",
                 .where = "--length",
                 .found = fmt::format("{}", options.length),
                 .expected = fmt::format("2 to {}, the model's context", config.context_length()),
                 .remedy = "give a smaller --length"});
  return {};
}

// The stream that lags furthest behind its share of the tokens; none when all are dry.
TokenStream* furthest_behind(std::vector<TokenStream>& streams) {
  TokenStream* best = nullptr;
  for (TokenStream& stream : streams) {
    if (stream.dry()) continue;
    const auto progress = [](const TokenStream& s) {
      return static_cast<double>(s.file().tokens_used) / s.file().weight;
    };
    if (best == nullptr || progress(stream) < progress(*best)) best = &stream;
  }
  return best;
}

// Bands of positions that the model's context reaches and the text hardly does.
std::string thin_bands(const CalibrationSet& set, int64_t context) {
  std::string bands;
  for (const CalibrationSet::Coverage& band : set.coverage()) {
    const bool told = band.begin == 0 && set.tokens() < kFewCalibrationTokens;  // by the note of all tokens
    if (told || band.begin >= context || band.tokens >= kFewBandTokens) continue;
    bands += fmt::format("{}{} at {}", bands.empty() ? "" : ", ", band.tokens, band.describe());
  }
  return bands;
}

void add_notes(const CalibrationDataOptions& options, int64_t context, CalibrationSet& set) {
  const int64_t wanted = options.samples * options.length;
  for (const CalibrationSet::File& file : set.files)
    if (file.documents_used == file.documents && set.tokens() < wanted)
      set.notes.push_back(fmt::format("{}: all of its text was used, {} tokens", file.path, file.tokens_used));
  if (set.tokens() < wanted)
    set.notes.push_back(fmt::format("calibrated on {} tokens, {} were asked for", set.tokens(), wanted));
  if (set.tokens() < kFewCalibrationTokens)
    set.notes.push_back(
        fmt::format("only {} tokens of calibration text: {} or more are advised", set.tokens(), kFewCalibrationTokens));
  if (const std::string bands = thin_bands(set, context); !bands.empty())
    set.notes.push_back(fmt::format(
        "little calibration text at some positions of the model's context: tokens {}; {} or more are advised where the "
        "model is used (--length)",
        bands, kFewBandTokens));
}

}  // namespace

Result<std::vector<CalibrationSource>> parse_calibration_sources(std::string_view text) {
  std::vector<CalibrationSource> sources;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    CalibrationSource source{.path = std::string(part), .weight = 1.0};
    // What follows the last colon is a weight where it is a number: paths may hold colons.
    if (const size_t colon = part.rfind(':'); colon != std::string_view::npos && colon + 1 < part.size()) {
      double weight = 0;
      const char *begin = part.data() + colon + 1, *end = part.data() + part.size();
      const auto [stop, status] = std::from_chars(begin, end, weight);
      if (status == std::errc() && stop == end) source = {std::string(part.substr(0, colon)), weight};
    }
    if (source.path.empty() || !(source.weight > 0) || source.weight > 1e9)
      return fail({.what = "calibration file or weight is not usable",
                   .where = "--calibrate",
                   .found = fmt::format("'{}'", part),
                   .expected = "FILE or FILE:WEIGHT with a weight above 0, several separated by commas"});
    sources.push_back(std::move(source));
    if (comma == std::string_view::npos) return sources;
    text.remove_prefix(comma + 1);
  }
}

int64_t CalibrationSet::tokens() const {
  int64_t total = 0;
  for (const std::vector<TokenId>& sample : samples) total += static_cast<int64_t>(sample.size());
  return total;
}

std::string CalibrationSet::describe_sample(int64_t sample) const {
  const std::string name = fmt::format("calibration sample {}", sample);
  if (static_cast<size_t>(sample) >= origins.size()) return name;
  constexpr size_t kMost = 8;
  const Origin& origin = origins[static_cast<size_t>(sample)];
  const std::span<const int64_t> lines(origin.lines.data(), std::min(origin.lines.size(), kMost));
  return fmt::format("{} ({}, what begins in line{} {}{})", name, files[origin.file].path, lines.size() > 1 ? "s" : "",
                     fmt::join(lines, ", "),
                     origin.lines.size() > kMost ? fmt::format(" and {} more", origin.lines.size() - kMost) : "");
}

std::string CalibrationSet::Coverage::describe() const {
  return end == 0 ? fmt::format("positions from {} on", begin) : fmt::format("positions {} to {}", begin, end - 1);
}

std::vector<CalibrationSet::Coverage> CalibrationSet::coverage() const {
  std::vector<Coverage> buckets = {{0, 512, 0}, {512, 2048, 0}, {2048, 8192, 0}, {8192, 32768, 0}, {32768, 0, 0}};
  for (const std::vector<TokenId>& sample : samples)
    for (Coverage& bucket : buckets) {
      const auto size = static_cast<int64_t>(sample.size());
      const int64_t end = bucket.end == 0 ? size : std::min(size, bucket.end);
      bucket.tokens += std::max<int64_t>(end - bucket.begin, 0);
    }
  return buckets;
}

Result<CalibrationSet> read_calibration_set(const std::filesystem::path& model, const ModelConfig& config,
                                            const CalibrationDataOptions& options) {
  OCTAVO_TRY(check_options(config, options));
  OCTAVO_ASSIGN(const DocumentEncoder encoder, DocumentEncoder::open(model, config));
  std::vector<TokenStream> streams;
  for (const CalibrationSource& source : options.sources) {
    const uint64_t seed = options.seed * 0x9E3779B97F4A7C15ull + streams.size();
    OCTAVO_ASSIGN(TokenStream stream, TokenStream::open(source, encoder, seed));
    streams.push_back(std::move(stream));
  }
  CalibrationSet set;
  while (static_cast<int64_t>(set.samples.size()) < options.samples) {
    TokenStream* stream = furthest_behind(streams);
    if (stream == nullptr) break;
    CalibrationSet::Origin origin{.file = static_cast<size_t>(stream - streams.data()), .lines = {}};
    OCTAVO_ASSIGN(std::vector<TokenId> sample, stream->take(options.length, origin.lines));
    if (sample.empty()) continue;
    set.samples.push_back(std::move(sample));
    set.origins.push_back(std::move(origin));
  }
  for (const TokenStream& stream : streams) set.files.push_back(stream.file());
  if (set.tokens() < kMinCalibrationTokens)
    return fail({.what = "there is too little calibration text",
                 .where = "--calibrate",
                 .found = fmt::format("{} tokens", set.tokens()),
                 .expected = fmt::format("at least {}, better {}", kMinCalibrationTokens, kFewCalibrationTokens)});
  add_notes(options, config.context_length(), set);
  return set;
}

}  // namespace octavo
