// The syntax tree of a template. Names carry the slot that symbols.cc gives them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/operators.h"
#include "text/jinja/value.h"

namespace octavo::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

// Where a variable lives: `hops` functions outwards, then the slot.
struct SlotRef {
  int hops = 0;
  int slot = -1;
};

struct CallSite {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> keywords;
  ExpressionPtr star, double_star;  // *args, **kwargs; may be null
};

struct Expression {
  enum class Kind : uint8_t {
    kConstant,      // value
    kName,          // name; store when it is assigned to
    kNamespaceRef,  // name.attribute, only as a target of set
    kTuple,         // children
    kList,          // children
    kDict,          // children: key, value, key, value, ...
    kBinary,        // operators[0]; children: left, right
    kUnary,         // operators[0]; children: operand
    kAnd,           // children: left, right
    kOr,
    kCompare,      // operators; children: first, then one per operator
    kConcatenate,  // children
    kConditional,  // children: test, then, else (else may be missing)
    kAttribute,    // children: object; name
    kItem,         // children: object, key
    kSlice,        // children: object, start, stop, step (the last three may be null)
    kCall,         // children: callee; arguments
    kFilter,       // children: input (null in filter blocks); name; arguments
    kTest,         // children: input; name; arguments
  };
  Expression(Kind which, size_t at) : kind(which), position(static_cast<uint32_t>(at)) {}

  Kind kind;
  bool store = false;
  uint16_t depth = 1;  // levels of expressions below, this one included
  uint32_t position;   // byte offset in the template
  SlotRef slot;
  std::string name, attribute;
  Value value;
  std::vector<Operator> operators;
  std::vector<ExpressionPtr> children;
  std::unique_ptr<CallSite> arguments;
};

// What a scope does on entry with the variables it shares a name with.
struct Load {
  enum class Kind : uint8_t { kContext, kAlias, kUndefined };
  Kind kind;
  int slot;
  SlotRef outer;     // kAlias: the variable whose value is copied
  std::string name;  // kContext: the variable given to the template, or global
};
struct Scope {
  std::vector<Load> loads;
};

struct Statement {
  enum class Kind : uint8_t {
    kData,
    kOutput,
    kSet,
    kSetBlock,
    kIf,
    kFor,
    kWith,
    kMacro,
    kCallBlock,
    kFilterBlock,
    kGeneration,
    kBreak,
    kContinue,
  };
  Statement(Kind which, size_t at) : kind(which), position(static_cast<uint32_t>(at)) {}
  virtual ~Statement() = default;
  Kind kind;
  uint32_t position;
};
using StatementPtr = std::unique_ptr<Statement>;
using Block = std::vector<StatementPtr>;

struct DataStatement : Statement {
  using Statement::Statement;
  std::string text;
};

struct OutputStatement : Statement {
  using Statement::Statement;
  std::vector<ExpressionPtr> expressions;
};

struct SetStatement : Statement {
  using Statement::Statement;
  ExpressionPtr target, value;
};

struct SetBlockStatement : Statement {
  using Statement::Statement;
  ExpressionPtr target, filter;  // filter may be null
  Block body;
  Scope scope;
};

struct IfStatement : Statement {
  using Statement::Statement;
  struct Branch {
    ExpressionPtr test;
    Block body;
  };
  std::vector<Branch> branches;  // if, then every elif
  Block otherwise;
};

struct ForStatement : Statement {
  using Statement::Statement;
  ExpressionPtr target, sequence;
  ExpressionPtr filter, filter_target;  // for x in y if filter: null without; filter_target repeats target
  bool recursive = false;
  Block body, otherwise;
  Scope scope, filter_scope, else_scope;
  int loop_slot = -1;
  int slot_count = 0;  // recursive: the loop is a function of its own
};

struct WithStatement : Statement {
  using Statement::Statement;
  std::vector<ExpressionPtr> targets, values;
  Block body;
  Scope scope;
};

// The function behind macro, call and generation blocks.
struct MacroBody {
  std::string name;                                 // empty for call blocks
  std::vector<ExpressionPtr> parameters, defaults;  // defaults belong to the last parameters
  Block body;
  Scope scope;
  int slot_count = 0;
  bool uses_caller = false;
  int caller_slot = -1, kwargs_slot = -1, varargs_slot = -1;  // -1: not used, or a parameter of that name
};

struct MacroStatement : Statement {
  using Statement::Statement;
  MacroBody macro;
  SlotRef slot;
};

struct CallBlockStatement : Statement {
  using Statement::Statement;
  ExpressionPtr call;
  MacroBody macro;
};

struct FilterBlockStatement : Statement {
  using Statement::Statement;
  ExpressionPtr filter;
  Block body;
  Scope scope;
};

struct GenerationStatement : Statement {
  using Statement::Statement;
  MacroBody macro;
};

struct Template {
  Block body;
  Scope scope;
  int slot_count = 0;
};

}  // namespace octavo::jinja
