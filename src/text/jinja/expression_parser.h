// The expression half of the parser.
#pragma once

#include <initializer_list>
#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/token_stream.h"

namespace octavo::jinja {

class ExpressionParser {
 public:
  // Both outlive this.
  ExpressionParser(TokenStream* tokens, int* depth) : tokens_(*tokens), depth_(depth) {}

  ExpressionPtr expression(bool with_conditional = true);
  // One expression, or several separated by commas as a tuple. `end_name` also ends it ("in", "recursive").
  struct TupleOptions {
    bool only_primaries = false;
    bool with_conditional = true;
    bool in_parentheses = false;
    bool with_namespace = false;
    std::string_view end_name;
  };
  ExpressionPtr tuple(TupleOptions options);
  // A target of set, for, with or a parameter; marked as such.
  ExpressionPtr assignment_target(TupleOptions options);
  ExpressionPtr name_target();
  // One or more filters applied to `input` (null in filter blocks). With `start_inline` the first has no "|".
  ExpressionPtr filters(ExpressionPtr input, bool start_inline);

 private:
  ExpressionPtr conditional();
  ExpressionPtr or_expression();
  ExpressionPtr and_expression();
  ExpressionPtr not_expression();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filter);
  ExpressionPtr primary(bool with_namespace);
  ExpressionPtr list_literal();
  ExpressionPtr dict_literal();
  ExpressionPtr postfix(ExpressionPtr node);
  ExpressionPtr filter_or_test(ExpressionPtr node);
  ExpressionPtr subscript(ExpressionPtr object);
  ExpressionPtr slice(ExpressionPtr object, size_t position);
  ExpressionPtr call(ExpressionPtr callee);
  ExpressionPtr test(ExpressionPtr input);
  std::unique_ptr<CallSite> call_arguments();
  std::string dotted_name();

  bool at_tuple_end(std::string_view end_name) const;
  void mark_as_target(Expression* target);

  TokenStream& tokens_;
  int* depth_;
};

}  // namespace octavo::jinja
