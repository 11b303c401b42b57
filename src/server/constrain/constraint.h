// Constraint: a grammar over a model's tokens: which tokens may follow, so that the answer is one of the grammar's
// texts.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/constrain/json_schema.h"
#include "server/constrain/token_trie.h"
#include "server/text_engine.h"

namespace octavo {

class Constraint : public std::enable_shared_from_this<Constraint> {
 public:
  using Filter = std::function<void(std::span<const TokenId> generated, std::vector<bool>& allowed)>;

  // `ends`: tokens that end an answer; allowed where the text is complete.
  Constraint(ByteGrammar grammar, std::shared_ptr<const TokenTrie> trie, std::vector<TokenId> ends,
             const Tokenizer& tokenizer);
  // For GenerationRequest::allow of one request. Keeps the constraint alive; the tokenizer must outlive it.
  Filter filter() const;
  bool is_empty() const { return automaton_.is_empty(); }

 private:
  struct Reader {
    ByteAutomaton::State state = 0;
    size_t consumed = 0;  // tokens
    uint64_t epoch = 0;
  };
  // Constrains the next token of one request. Callers hold mutex_.
  void apply(Reader& reader, std::span<const TokenId> generated, std::vector<bool>& allowed) const;
  const std::vector<bool>& mask(ByteAutomaton::State state) const;

  // What was learned about the grammar is shared by all requests, and dropped when it grows too large.
  mutable std::mutex mutex_;
  mutable ByteAutomaton automaton_;
  mutable std::unordered_map<ByteAutomaton::State, std::vector<bool>> masks_;
  mutable uint64_t epoch_ = 0;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<TokenId> ends_;
  const Tokenizer& tokenizer_;
};

// Makes constraints and remembers the last few. One thread.
class ConstraintCompiler {
 public:
  explicit ConstraintCompiler(const TextEngine& engine) : engine_(engine) {}
  ApiResult<std::shared_ptr<const Constraint>> json_object();
  ApiResult<std::shared_ptr<const Constraint>> json_schema(const Json& schema);  // an object, or its text
  // As in grammar_of_calls().
  ApiResult<std::shared_ptr<const Constraint>> calls(const std::vector<std::string>& names, const Json& schemas);
  ApiResult<std::shared_ptr<const Constraint>> choice(const Json& choices);  // a list of texts

 private:
  std::shared_ptr<const Constraint> known(const std::string& key) const;
  ApiResult<std::shared_ptr<const Constraint>> add(std::string key, ByteGrammar grammar);

  const TextEngine& engine_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<TokenId> ends_;
  std::deque<std::pair<std::string, std::shared_ptr<const Constraint>>> known_;
};

}  // namespace octavo
