#include "precision/name_rule.h"

#include <fmt/format.h>

#include "base/check.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace octavo {
namespace {

// Patterns come with checkpoints: bounded in size and in work.
constexpr size_t kMaxPattern = 4096;
constexpr uint32_t kMaxSteps = 20'000, kMaxHeapKib = 4096;

std::string pcre_message(int code) {
  PCRE2_UCHAR8 text[256];
  const int length = pcre2_get_error_message_8(code, text, sizeof(text));
  return length < 0 ? fmt::format("error {}", code) : std::string(reinterpret_cast<const char*>(text));
}

}  // namespace

Result<NameRule> NameRule::parse(std::string_view text) {
  NameRule rule;
  rule.text_ = std::string(text);
  if (!text.starts_with("re:")) return rule;
  const std::string_view pattern = text.substr(3);
  if (pattern.size() > kMaxPattern)
    return fail({.what = "pattern is too long",
                 .where = fmt::format("rule '{}...'", text.substr(0, 40)),
                 .found = fmt::format("{} characters", pattern.size()),
                 .expected = fmt::format("at most {}", kMaxPattern)});
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code_8* code =
      pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern.data()), pattern.size(),
                      PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C | PCRE2_NEVER_UTF, &error, &offset, nullptr);
  if (code == nullptr)
    return fail({.what = "pattern does not compile",
                 .where = fmt::format("rule '{}'", text),
                 .found = fmt::format("{} at offset {} of the pattern", pcre_message(error), offset),
                 .expected = "a regular expression after 're:', or an exact module name"});
  rule.pattern_ = std::shared_ptr<void>(code, [](void* p) { pcre2_code_free_8(static_cast<pcre2_code_8*>(p)); });
  return rule;
}

Result<bool> NameRule::matches(std::string_view name) const {
  if (pattern_ == nullptr) return name == text_;
  const auto* code = static_cast<const pcre2_code_8*>(pattern_.get());
  pcre2_match_data_8* data = pcre2_match_data_create_8(1, nullptr);
  pcre2_match_context_8* context = pcre2_match_context_create_8(nullptr);
  OCTAVO_CHECK(data != nullptr && context != nullptr, "out of memory");
  pcre2_set_match_limit_8(context, kMaxSteps);
  pcre2_set_depth_limit_8(context, kMaxSteps);
  pcre2_set_heap_limit_8(context, kMaxHeapKib);
  const int result = pcre2_match_8(code, reinterpret_cast<PCRE2_SPTR8>(name.data()), name.size(), 0, 0, data, context);
  pcre2_match_context_free_8(context);
  pcre2_match_data_free_8(data);
  if (result >= 0) return true;
  if (result == PCRE2_ERROR_NOMATCH) return false;
  return fail({.what = "pattern cannot be matched",
               .where = fmt::format("rule '{}' on module '{}'", text_, name),
               .found = pcre_message(result),
               .remedy = "use a simpler pattern"});
}

}  // namespace octavo
