// Stepping through the tokens.
#include "text/jinja/token_stream.h"

#include <fmt/format.h>

#include "text/jinja/budget.h"

namespace octavo::jinja {

const Token& TokenStream::next() {
  const Token& token = tokens_[index_];
  if (index_ + 1 < tokens_.size()) ++index_;
  return token;
}

bool TokenStream::skip_operator(std::string_view spelling) {
  if (!at_operator(spelling)) return false;
  next();
  return true;
}

bool TokenStream::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  next();
  return true;
}

const Token& TokenStream::expect(TokenType type, std::string_view description) {
  if (!at(type)) fail_expected(description);
  return next();
}

void TokenStream::expect_operator(std::string_view spelling) {
  if (!skip_operator(spelling)) fail_expected(spelling);
}

void TokenStream::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_expected(name);
}

void TokenStream::fail_at(size_t position, std::string what) {
  throw Failure{.what = std::move(what), .position = position};
}

void TokenStream::fail_expected(std::string_view description) const {
  if (at(TokenType::kEnd)) fail(fmt::format("unexpected end of template, expected '{}'.", description));
  fail(fmt::format("expected token '{}', got '{}'", description, describe(current())));
}

DepthGuard::DepthGuard(int* depth, const TokenStream& tokens) : depth_(depth) {
  if (++*depth > kMaxSyntaxDepth) {
    --*depth;
    throw Failure{.what = "the template is nested too deeply",
                  .expected = fmt::format("at most {} levels", kMaxSyntaxDepth),
                  .position = tokens.current().position};
  }
}

}  // namespace octavo::jinja
