#include "evaluate/needle.h"

#include <algorithm>
#include <array>

#include "base/random.h"
#include "evaluate/section_log.h"

namespace octavo {
namespace {

constexpr std::array<std::string_view, 12> kPlaces = {"Lisbon", "Oslo",  "Cairo",  "Lima",    "Quito",  "Hanoi",
                                                      "Dublin", "Delhi", "Zagreb", "Nairobi", "Prague", "Seoul"};

// The last place at or before `wanted` where a sentence or a line has just ended, within `reach` tokens; else `wanted`.
size_t sentence_end(const Tokenizer& tokenizer, std::span<const TokenId> tokens, size_t wanted) {
  constexpr size_t kReach = 64;
  for (size_t at = wanted; at > 0 && wanted - at < kReach; --at) {
    const std::string bytes = tokenizer.token_bytes(tokens[at - 1]);
    if (bytes.ends_with('.') || bytes.ends_with('\n')) return at;
  }
  return wanted;
}

// What a log keeps of a cell.
Result<Json> cell_json(Model& model, const std::vector<ScoreSpan>& spans) {
  OCTAVO_ASSIGN(const std::vector<SpanScore> scores, score_spans(model, spans));
  int64_t found = 0, worst_rank = 0;
  double logprob = 0;
  for (const SpanScore& score : scores) {
    found += score.greedy ? 1 : 0;
    logprob += score.loglikelihood / static_cast<double>(scores.size());
    worst_rank = std::max(worst_rank, score.worst_rank);
  }
  return Json{{"found", found}, {"logprob", logprob}, {"worst_rank", worst_rank}};
}

bool read_cell(const Json& json, NeedleCell& cell) {
  for (const char* key : {"found", "logprob", "worst_rank"})
    if (!json.is_object() || !json.contains(key) || !json[key].is_number()) return false;
  cell.found = json["found"].get<int64_t>();
  cell.logprob = json["logprob"].get<double>();
  cell.worst_rank = json["worst_rank"].get<int64_t>();
  return cell.found >= 0 && cell.found <= cell.tries;
}

}  // namespace

Result<void> check_needle_options(const ModelConfig& config, const NeedleOptions& options) {
  for (const int64_t length : options.lengths)
    if (length < 64 || length > config.context_length())
      return fail({.what = "a length is out of range",
                   .where = options.flags + "lengths",
                   .found = fmt::format("{}", length),
                   .expected = fmt::format("64 to {}, the model's context", config.context_length())});
  for (const int64_t depth : options.depths)
    if (depth < 0 || depth > 100)
      return fail({.what = "a depth is out of range",
                   .where = options.flags + "depths",
                   .found = fmt::format("{}", depth),
                   .expected = "0 to 100 per cent"});
  if (options.tries < 1 || options.tries > 1000)
    return fail({.what = "the number of tries is out of range",
                 .where = options.flags + "tries",
                 .found = fmt::format("{}", options.tries),
                 .expected = "1 to 1000"});
  return {};
}

Result<ScoreSpan> needle_span(const Model& model, std::span<const TokenId> haystack, int64_t length, int64_t depth,
                              std::string_view place, std::string_view number) {
  const Tokenizer& tokenizer = model.tokenizer();
  const auto encode = [&](const std::string& text) { return tokenizer.encode(text, false); };
  const std::vector<TokenId> needle = encode(fmt::format(" The secret number of {} is {}.", place, number));
  const std::string asked = fmt::format("\n\nThe secret number of {} is", place);
  const std::vector<TokenId> question = encode(asked), whole = encode(fmt::format("{} {}", asked, number));
  const int64_t hay = length - static_cast<int64_t>(needle.size() + whole.size());
  if (hay > static_cast<int64_t>(haystack.size()))
    return fail({.what = "the text is shorter than the haystack",
                 .where = "--text",
                 .found = fmt::format("{} tokens", haystack.size()),
                 .expected = fmt::format("at least {}, for needles in {}", hay, length),
                 .remedy = "give a longer text, or smaller lengths"});
  if (hay < 1)
    return fail({.what = "the length leaves no room for a haystack",
                 .found = fmt::format("{} tokens", length),
                 .expected = fmt::format("more than {}", length - hay)});
  const std::span<const TokenId> straw = haystack.first(static_cast<size_t>(hay));
  const size_t at = sentence_end(tokenizer, straw, static_cast<size_t>(hay * depth / 100));
  ScoreSpan span;
  span.tokens.assign(straw.begin(), straw.begin() + static_cast<ptrdiff_t>(at));
  span.tokens.insert(span.tokens.end(), needle.begin(), needle.end());
  span.tokens.insert(span.tokens.end(), straw.begin() + static_cast<ptrdiff_t>(at), straw.end());
  span.tokens.insert(span.tokens.end(), whole.begin(), whole.end());
  span.scored = static_cast<int64_t>(whole.size()) - static_cast<int64_t>(question.size());
  if (span.scored < 1) return fail({.what = "the tokenizer merges question and answer", .found = asked});
  return span;
}

Result<std::vector<NeedleCell>> needle_grid(Model& model, std::string_view text, const NeedleOptions& options,
                                            const std::function<void(int64_t, int64_t)>& progress, SectionLog* log,
                                            const std::string& name) {
  OCTAVO_TRY(check_needle_options(model.config(), options));
  const std::vector<TokenId> haystack = model.tokenizer().encode(text, false);
  for (const int64_t length : options.lengths)  // whether the text is long enough, before anything is scored
    if (auto span = needle_span(model, haystack, length, 0, kPlaces[0], "10000"); !span) {
      Error error = std::move(span).error();
      if (error.where.empty()) error.where = options.flags + "lengths";
      return fail(std::move(error));
    }
  const auto total = static_cast<int64_t>(options.lengths.size() * options.depths.size());
  std::vector<NeedleCell> cells;
  Random random(options.seed);
  for (const int64_t length : options.lengths) {
    for (const int64_t depth : options.depths) {
      std::vector<ScoreSpan> spans;
      for (int64_t i = 0; i < options.tries; ++i) {
        const std::string_view place = kPlaces[random.below(kPlaces.size())];
        const std::string number = fmt::format("{}", 10000 + random.below(90000));
        OCTAVO_ASSIGN(ScoreSpan span, needle_span(model, haystack, length, depth, place, number));
        spans.push_back(std::move(span));
      }
      const std::string at = fmt::format("{}, {} tokens, {} %", name, length, depth);
      OCTAVO_ASSIGN(const Json scored, section(log, at, [&] { return cell_json(model, spans); }));
      NeedleCell cell{.length = length, .depth = depth, .tries = options.tries};
      if (!read_cell(scored, cell)) return fail(log->refuse(at));
      cells.push_back(cell);
      if (progress) progress(static_cast<int64_t>(cells.size()), total);
    }
  }
  return cells;
}

Json needle_cells(const std::vector<NeedleCell>& cells) {
  Json out = Json::array();
  for (const NeedleCell& cell : cells)
    out.push_back({{"length", cell.length},
                   {"depth", cell.depth},
                   {"tries", cell.tries},
                   {"found", cell.found},
                   {"logprob", cell.logprob},
                   {"worst_rank", cell.worst_rank}});
  return out;
}

}  // namespace octavo
