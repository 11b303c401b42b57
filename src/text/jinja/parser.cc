// The statement half of the parser.
#include "text/jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/jinja/budget.h"
#include "text/jinja/expression_parser.h"
#include "text/jinja/symbols.h"
#include "text/jinja/token_stream.h"

namespace octavo::jinja {
namespace {

using EndNames = std::vector<std::string_view>;

class StatementParser {
 public:
  explicit StatementParser(std::vector<Token> tokens) : tokens_(std::move(tokens)), expressions_(&tokens_, &depth_) {}

  Block run() {
    Block body = statements_until({});
    return body;
  }

 private:
  // Reads up to (not including) one of the end names of the innermost open block, or to the end of the template.
  Block statements_until(const EndNames& end_names) {
    const DepthGuard guard(&depth_, tokens_);
    Block body;
    while (!tokens_.at(TokenType::kEnd)) {
      const Token& token = tokens_.next();
      if (token.type == TokenType::kData) {
        auto data = std::make_unique<DataStatement>(Statement::Kind::kData, token.position);
        data->text = token.text;
        body.push_back(std::move(data));
      } else if (token.type == TokenType::kVariableBegin) {
        auto output = std::make_unique<OutputStatement>(Statement::Kind::kOutput, token.position);
        output->expressions.push_back(expressions_.tuple({}));
        tokens_.expect(TokenType::kVariableEnd, "end of print statement");
        body.push_back(std::move(output));
      } else {
        for (const std::string_view name : end_names)
          if (tokens_.at_name(name)) return body;
        body.push_back(statement(end_names));
        tokens_.expect(TokenType::kBlockEnd, "end of statement block");
      }
    }
    if (!end_names.empty()) fail_end(end_names);
    return body;
  }

  // The body of a block tag: from its end to one of the end names, which stays current.
  Block block_body(const EndNames& end_names) {
    tokens_.skip_operator(":");
    tokens_.expect(TokenType::kBlockEnd, "end of statement block");
    return statements_until(end_names);
  }
  Block whole_body(std::string_view end_name) {
    Block body = block_body({end_name});
    tokens_.next();
    return body;
  }

  static std::string looking_for(const EndNames& end_names) {
    std::string text;
    for (const std::string_view name : end_names) text += fmt::format("{}'{}'", text.empty() ? "" : " or ", name);
    return text;
  }

  std::string innermost() const {
    if (open_tags_.empty()) return "";
    return fmt::format(" The innermost block that needs to be closed is '{}'.", open_tags_.back());
  }

  [[noreturn]] void fail_end(const EndNames& end_names) const {
    tokens_.fail(fmt::format("Unexpected end of template. Jinja was looking for the following tags: {}.{}",
                             looking_for(end_names), innermost()));
  }

  [[noreturn]] void fail_unknown(const Token& tag, const EndNames& end_names) const {
    for (const std::string_view known :
         {"block", "extends", "include", "import", "from", "autoescape", "do", "debug", "trans", "pluralize"})
      if (tag.text == known)
        TokenStream::fail_at(tag.position, fmt::format("the tag '{}' is not supported in chat templates", tag.text));
    std::string what = fmt::format("Encountered unknown tag '{}'.", tag.text);
    if (!end_names.empty())
      what += fmt::format(" Jinja was looking for the following tags: {}.", looking_for(end_names));
    TokenStream::fail_at(tag.position, what + innermost());
  }

  StatementPtr statement(const EndNames& end_names) {
    if (!tokens_.at(TokenType::kName)) tokens_.fail("tag name expected");
    struct Tag {
      std::string_view name;
      StatementPtr (StatementParser::*parse)();
    };
    static constexpr Tag kTags[] = {
        {"set", &StatementParser::parse_set},
        {"if", &StatementParser::parse_if},
        {"for", &StatementParser::parse_for},
        {"macro", &StatementParser::parse_macro},
        {"call", &StatementParser::parse_call},
        {"filter", &StatementParser::parse_filter},
        {"with", &StatementParser::parse_with},
        {"print", &StatementParser::parse_print},
        {"break", &StatementParser::parse_break},
        {"continue", &StatementParser::parse_continue},
        {"generation", &StatementParser::parse_generation},
    };
    for (const Tag& tag : kTags) {
      if (!tokens_.at_name(tag.name)) continue;
      open_tags_.push_back(tag.name);
      StatementPtr parsed = (this->*tag.parse)();
      open_tags_.pop_back();
      return parsed;
    }
    fail_unknown(tokens_.current(), end_names);
  }

  StatementPtr parse_set() {
    const size_t position = tokens_.next().position;
    ExpressionPtr target = expressions_.assignment_target({.with_namespace = true});
    if (tokens_.skip_operator("=")) {
      auto node = std::make_unique<SetStatement>(Statement::Kind::kSet, position);
      node->target = std::move(target);
      node->value = expressions_.tuple({});
      return node;
    }
    auto node = std::make_unique<SetBlockStatement>(Statement::Kind::kSetBlock, position);
    node->target = std::move(target);
    node->filter = expressions_.filters(nullptr, false);
    node->body = whole_body("endset");
    return node;
  }

  StatementPtr parse_if() {
    auto node = std::make_unique<IfStatement>(Statement::Kind::kIf, tokens_.next().position);
    while (true) {
      IfStatement::Branch branch;
      branch.test = expressions_.tuple({.with_conditional = false});
      branch.body = block_body({"elif", "else", "endif"});
      node->branches.push_back(std::move(branch));
      const Token& end = tokens_.next();
      if (end.text == "elif") continue;
      if (end.text == "else") node->otherwise = whole_body("endif");
      return node;
    }
  }

  StatementPtr parse_for() {
    auto node = std::make_unique<ForStatement>(Statement::Kind::kFor, tokens_.next().position);
    node->target = expressions_.assignment_target({.end_name = "in"});
    tokens_.expect_name("in");
    node->sequence = expressions_.tuple({.with_conditional = false, .end_name = "recursive"});
    if (tokens_.skip_name("if")) {
      node->filter = expressions_.expression();
      node->filter_target = copy_target(*node->target);
    }
    node->recursive = tokens_.skip_name("recursive");
    ++loops_;
    node->body = block_body({"endfor", "else"});
    --loops_;
    if (tokens_.next().text == "else") node->otherwise = whole_body("endfor");
    return node;
  }

  static ExpressionPtr copy_target(const Expression& target) {
    auto copy = std::make_unique<Expression>(target.kind, target.position);
    copy->name = target.name;
    copy->store = true;
    copy->depth = target.depth;
    for (const ExpressionPtr& child : target.children) copy->children.push_back(copy_target(*child));
    return copy;
  }

  StatementPtr parse_with() {
    auto node = std::make_unique<WithStatement>(Statement::Kind::kWith, tokens_.next().position);
    while (!tokens_.at(TokenType::kBlockEnd)) {
      if (!node->targets.empty()) tokens_.expect_operator(",");
      node->targets.push_back(expressions_.assignment_target({}));
      tokens_.expect_operator("=");
      node->values.push_back(expressions_.expression());
    }
    node->body = whole_body("endwith");
    return node;
  }

  void parse_signature(MacroBody* macro) {
    tokens_.expect_operator("(");
    while (!tokens_.at_operator(")")) {
      if (!macro->parameters.empty()) tokens_.expect_operator(",");
      macro->parameters.push_back(expressions_.name_target());
      const std::string& name = macro->parameters.back()->name;
      for (size_t i = 0; i + 1 < macro->parameters.size(); ++i)
        if (macro->parameters[i]->name == name) tokens_.fail(fmt::format("duplicate parameter '{}'", name));
      if (tokens_.skip_operator("=")) {
        macro->defaults.push_back(expressions_.expression());
      } else if (!macro->defaults.empty()) {
        tokens_.fail("non-default argument follows default argument");
      }
    }
    tokens_.expect_operator(")");
  }

  // The body of a function: loops around it do not count for break and continue.
  Block function_body(std::string_view end_name) {
    const int outer = std::exchange(loops_, 0);
    Block body = whole_body(end_name);
    loops_ = outer;
    return body;
  }

  StatementPtr parse_macro() {
    auto node = std::make_unique<MacroStatement>(Statement::Kind::kMacro, tokens_.next().position);
    node->macro.name = expressions_.name_target()->name;
    parse_signature(&node->macro);
    node->macro.body = function_body("endmacro");
    return node;
  }

  StatementPtr parse_call() {
    const size_t position = tokens_.next().position;
    auto node = std::make_unique<CallBlockStatement>(Statement::Kind::kCallBlock, position);
    if (tokens_.at_operator("(")) parse_signature(&node->macro);
    node->call = expressions_.expression();
    if (node->call->kind != Expression::Kind::kCall) TokenStream::fail_at(position, "expected call");
    node->macro.body = function_body("endcall");
    return node;
  }

  StatementPtr parse_filter() {
    auto node = std::make_unique<FilterBlockStatement>(Statement::Kind::kFilterBlock, tokens_.next().position);
    node->filter = expressions_.filters(nullptr, true);
    node->body = whole_body("endfilter");
    return node;
  }

  StatementPtr parse_generation() {
    auto node = std::make_unique<GenerationStatement>(Statement::Kind::kGeneration, tokens_.next().position);
    node->macro.body = function_body("endgeneration");
    return node;
  }

  StatementPtr parse_print() {
    auto node = std::make_unique<OutputStatement>(Statement::Kind::kOutput, tokens_.next().position);
    while (!tokens_.at(TokenType::kBlockEnd)) {
      if (!node->expressions.empty()) tokens_.expect_operator(",");
      node->expressions.push_back(expressions_.expression());
    }
    return node;
  }

  StatementPtr parse_jump(Statement::Kind kind) {
    const Token& token = tokens_.next();
    if (loops_ == 0) TokenStream::fail_at(token.position, fmt::format("'{}' outside loop", token.text));
    return std::make_unique<Statement>(kind, token.position);
  }
  StatementPtr parse_break() { return parse_jump(Statement::Kind::kBreak); }
  StatementPtr parse_continue() { return parse_jump(Statement::Kind::kContinue); }

  TokenStream tokens_;
  int depth_ = 0;
  int loops_ = 0;  // loops around the current statement, within its function
  ExpressionParser expressions_;
  std::vector<std::string_view> open_tags_;
};

}  // namespace

Template parse_template(std::string_view source) {
  Template parsed;
  parsed.body = StatementParser(tokenize(source)).run();
  resolve_names(&parsed);
  return parsed;
}

}  // namespace octavo::jinja
