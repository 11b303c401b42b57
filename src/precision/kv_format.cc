#include "precision/kv_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "formats/paged_kv.h"

namespace octavo {
namespace {

constexpr int kMostWideTokens = kPageTokens, kMostRescaleTokens = 65536;

// Formats by name. Quantized ones: a scale per (token, head), computed when the token is written.
struct KvName {
  std::string_view name;
  ElementType element;
  bool scaled;
};
constexpr std::array kKvNames = {
    KvName{"bf16", ElementType::kBf16, false},    KvName{"float32", ElementType::kF32, false},
    KvName{"fp8_e4m3", ElementType::kE4m3, true}, KvName{"fp8", ElementType::kE4m3, true},
    KvName{"fp8_e5m2", ElementType::kE5m2, true}, KvName{"int8", ElementType::kInt8, true},
};

// The options of a text, as they stand there.
struct Options {
  bool dynamic = false, fixed = false, tensor = false, channel = false, temperature = false;
  int block = 0, wide = 0;
  std::vector<std::pair<int, int>> skip;

  bool any() const { return scales() || temperature || wide > 0 || !skip.empty(); }
  bool scales() const { return dynamic || fixed || tensor || channel || block > 0; }
};

Error bad(std::string_view text, std::string found, std::string expected) {
  return {
      .what = fmt::format("no KV cache type: '{}'", text), .found = std::move(found), .expected = std::move(expected)};
}

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

// "0-1+29"
std::optional<std::vector<std::pair<int, int>>> layer_ranges(std::string_view text) {
  std::vector<std::pair<int, int>> ranges;
  while (true) {
    const size_t plus = text.find('+');
    const std::string_view part = text.substr(0, plus);
    const size_t dash = part.find('-');
    const auto first = number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : number(part.substr(dash + 1));
    if (!first || !last || *last < *first) return std::nullopt;
    ranges.emplace_back(*first, *last);
    if (plus == std::string_view::npos) return ranges;
    text.remove_prefix(plus + 1);
  }
}

Result<void> read_option(std::string_view text, std::string_view option, Options& options) {
  const std::pair<std::string_view, bool*> words[] = {{"dynamic", &options.dynamic},
                                                      {"static", &options.fixed},
                                                      {"tensor", &options.tensor},
                                                      {"channel", &options.channel},
                                                      {"temperature", &options.temperature}};
  for (const auto& [word, value] : words)
    if (option == word) {
      if (*value) return fail(bad(text, fmt::format("'{}' twice", word), "each option once"));
      *value = true;
      return {};
    }
  if (option.starts_with("wide")) {
    const auto n = number(option.substr(4));
    if (!n || *n < 1 || *n > kMostWideTokens || options.wide > 0)
      return fail(bad(text, fmt::format("'{}'", option), fmt::format("wide1 to wide{}, once", kMostWideTokens)));
    options.wide = *n;
    return {};
  }
  if (option.starts_with("block")) {
    const auto n = number(option.substr(5));
    if (!n || *n < kPageTokens || *n > kMostRescaleTokens || *n % kPageTokens != 0 || options.block > 0)
      return fail(
          bad(text, fmt::format("'{}'", option),
              fmt::format("block{} to block{}, a multiple of {}, once", kPageTokens, kMostRescaleTokens, kPageTokens)));
    options.block = *n;
    return {};
  }
  if (option.starts_with("skip")) {
    const auto ranges = layer_ranges(option.substr(4));
    if (!ranges || !options.skip.empty())
      return fail(bad(text, fmt::format("'{}'", option), "layers, once: for example skip0-1+29"));
    options.skip = *ranges;
    return {};
  }
  return fail(bad(text, fmt::format("option '{}'", option),
                  "dynamic, static, tensor, channel, blockN, wideN, temperature or skipLAYERS"));
}

// The format, and the options that stand behind it.
Result<const KvName*> split(std::string_view text, Options& options) {
  size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto row =
      std::find_if(kKvNames.begin(), kKvNames.end(), [&](const KvName& known) { return known.name == name; });
  if (row == kKvNames.end()) {
    std::string names;
    for (const KvName& known : kKvNames) names += (names.empty() ? "" : ", ") + std::string(known.name);
    return fail({.what = "unknown KV cache type",
                 .found = fmt::format("'{}'", text),
                 .expected = fmt::format("auto, or one of {}; behind it :OPTION...", names)});
  }
  while (colon != std::string_view::npos) {
    const size_t next = text.find(':', colon + 1);
    OCTAVO_TRY(
        read_option(text, text.substr(colon + 1, next == std::string_view::npos ? next : next - colon - 1), options));
    colon = next;
  }
  return &*row;
}

Result<void> check(std::string_view text, const KvName& row, const Options& o, KvPart part) {
  if (!row.scaled && o.any())
    return fail(bad(text, fmt::format("options behind {}", row.name), "options behind fp8_e4m3, fp8_e5m2 or int8"));
  if (o.dynamic && (o.fixed || o.tensor || o.channel || o.block > 0))
    return fail(bad(text, "dynamic and calibrated scales at once", "one of them"));
  if (o.fixed + o.tensor + (o.block > 0) > 1 || (o.channel && o.block > 0))
    return fail(bad(text, "two kinds of scales", "one of static, tensor and blockN; blockN without channel"));
  if (part == KvPart::kV && (o.channel || o.temperature))
    return fail(bad(text, o.channel ? "'channel' for values" : "'temperature' for values", "options of keys with K"));
  if (part == KvPart::kK && o.channel && (o.fixed || o.tensor))
    return fail(bad(text, "channel and another kind of scales for keys", "one of them"));
  return {};
}

}  // namespace

Result<KvRequest> parse_kv(std::string_view text, KvPart part) {
  Options o;
  OCTAVO_ASSIGN(const KvName* row, split(text, o));
  OCTAVO_TRY(check(text, *row, o, part));
  KvRequest request;
  request.k.format = request.v.format = row->scaled ? row_format(row->element) : plain_format(row->element);
  request.k.dynamic = o.dynamic;
  request.v.dynamic = o.dynamic || (o.channel && !o.fixed && !o.tensor);
  const bool fixed = o.fixed || o.tensor || o.block > 0;
  if (fixed || o.channel) request.k.format.scale_time = ScaleTime::kStored;
  if (fixed) request.v.format.scale_time = ScaleTime::kStored;
  request.k.options = {.tensor_scale = o.tensor && !o.channel,
                       .channels = o.channel,
                       .temperature = o.temperature,
                       .wide_tokens = o.wide,
                       .rescale_tokens = o.block};
  request.v.options = {.tensor_scale = o.tensor, .wide_tokens = o.wide, .rescale_tokens = o.block};
  request.skip = std::move(o.skip);
  return request;
}

Result<KvSide> parse_kv_side(std::string_view text, KvPart part) {
  OCTAVO_ASSIGN(const KvRequest request, parse_kv(text, part));
  if (!request.skip.empty()) return fail(bad(text, "'skip' for one layer", "layers to skip in a whole model's cache"));
  return part == KvPart::kV ? request.v : request.k;
}

Result<TensorFormat> kv_format(std::string_view name) {
  OCTAVO_ASSIGN(const KvRequest request, parse_kv(name));
  const bool plain = request.k.options == KvOptions{} && request.skip.empty() && !request.k.dynamic;
  if (!plain || request.k.stored()) return fail(bad(name, "options", "a format alone"));
  return request.k.format;
}

std::string kv_side_name(const TensorFormat& format, const KvOptions& options) {
  std::string name(element_name(format.element));
  for (const KvName& row : kKvNames)
    if (row.element == format.element) {
      name = row.name;
      break;
    }
  const bool stored = format.scaled() && format.scale_time == ScaleTime::kStored;
  if (options.channels)
    name += ":channel";
  else if (options.rescale_tokens > 0)
    name += fmt::format(":block{}", options.rescale_tokens);
  else if (stored)
    name += options.tensor_scale ? ":tensor" : ":static";
  if (options.wide_tokens > 0) name += fmt::format(":wide{}", options.wide_tokens);
  if (options.temperature) name += ":temperature";
  return name;
}

std::string kv_name(const KvPlan& kv) {
  const std::string k = kv_side_name(kv.k, kv.k_options), v = kv_side_name(kv.v, kv.v_options);
  return k == v ? k : k + "/" + v;
}

std::string describe_kv(const TensorFormat& format, const KvOptions& options) {
  const std::string_view element = element_name(format.element);
  const bool stored = format.scaled() && format.scale_time == ScaleTime::kStored;
  std::string text = format.describe();
  if (options.channels)
    text = fmt::format("{} per channel, zero points", element);
  else if (options.rescale_tokens > 0)
    text = fmt::format("{} per head, a new scale every {} tokens", element, options.rescale_tokens);
  else if (stored)
    text = fmt::format("{} {}, stored scale", element, options.tensor_scale ? "per tensor" : "per head");
  if (options.wide_tokens > 0) text += fmt::format(", first {} tokens bf16", options.wide_tokens);
  if (options.temperature) text += ", query temperature";
  return text;
}

std::string_view kv_spelling() {
  return "auto, bf16, fp8_e4m3, fp8_e5m2, int8; behind it options such as :static, :channel, :wide4 (docs/kv_cache.md)";
}

namespace {

bool asked(const std::string& name) {
  return !name.empty() && name != "auto";
}

// Scales that the checkpoint stores for this element are used, not computed anew, unless the request speaks of scales.
void lay_over(TensorFormat& format, KvOptions& options, const KvSide& wanted) {
  const bool keeps_stored = format.element == wanted.format.element && format.scale_time == ScaleTime::kStored &&
                            format.scaled() && !wanted.stored() && !wanted.dynamic;
  if (!keeps_stored) {
    format = wanted.format;
    options = wanted.options;
    return;
  }
  options.temperature |= wanted.options.temperature;
  if (wanted.options.wide_tokens > 0) options.wide_tokens = wanted.options.wide_tokens;
}

Result<void> skip_layers(PrecisionPlan& plan, const KvRequest& wanted, bool k, bool v) {
  const auto layers = static_cast<int>(plan.kv.size());
  for (const auto& [first, last] : wanted.skip) {
    if (last >= layers)
      return fail({.what = "no such layer to skip",
                   .found = fmt::format("layer {}", last),
                   .expected = fmt::format("0 to {}", layers - 1)});
    for (int i = first; i <= last; ++i) {
      KvPlan& layer = plan.kv[static_cast<size_t>(i)];
      if (k) layer.k = plain_format(ElementType::kBf16), layer.k_options = {};
      if (v) layer.v = plain_format(ElementType::kBf16), layer.v_options = {};
    }
  }
  return {};
}

}  // namespace

Result<void> apply_kv_request(PrecisionPlan& plan, const PlanRequest& request) {
  struct Ask {
    const std::string& name;
    std::string_view flag;
    KvPart part;
  };
  for (const Ask& ask :
       {Ask{request.kv_cache_dtype, "--kv-cache-dtype", KvPart::kBoth}, Ask{request.k_dtype, "--k-dtype", KvPart::kK},
        Ask{request.v_dtype, "--v-dtype", KvPart::kV}}) {
    if (!asked(ask.name)) continue;
    const auto at_flag = [&](Error error) {
      error.where = std::string(ask.flag);
      return fail(std::move(error));
    };
    const bool k = ask.part != KvPart::kV, v = ask.part != KvPart::kK;
    auto wanted = parse_kv(ask.name, ask.part);
    if (!wanted) return at_flag(std::move(wanted).error());
    for (KvPlan& layer : plan.kv) {
      if (k) lay_over(layer.k, layer.k_options, wanted->k);
      if (v) lay_over(layer.v, layer.v_options, wanted->v);
      layer.reason = k && v ? fmt::format("{} {}", ask.flag, ask.name)
                            : fmt::format("{}, {} {}", layer.reason, ask.flag, ask.name);
    }
    if (auto skipped = skip_layers(plan, *wanted, k, v); !skipped) return at_flag(std::move(skipped).error());
  }
  return {};
}

}  // namespace octavo
