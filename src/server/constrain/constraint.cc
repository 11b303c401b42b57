#include "server/constrain/constraint.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/openai/json_text.h"

namespace octavo {
namespace {

constexpr size_t kMaxStates = 4096, kMaxNodes = 200'000, kMaxMasks = 512, kMaxKnown = 8;
constexpr int64_t kMaxSteps = 100'000'000;  // for one token: a fraction of a second
constexpr size_t kMaxSchemaBytes = size_t{512} << 10;
constexpr size_t kMaxChoices = 1000, kMaxChoiceBytes = 4096;

ApiError too_many_bytes() {
  return {.message = fmt::format("the JSON schema has more than {} bytes", kMaxSchemaBytes), .code = "invalid_schema"};
}

}  // namespace

Constraint::Constraint(ByteGrammar grammar, std::shared_ptr<const TokenTrie> trie, std::vector<TokenId> ends,
                       const Tokenizer& tokenizer)
    : automaton_(std::move(grammar)), trie_(std::move(trie)), ends_(std::move(ends)), tokenizer_(tokenizer) {}

Constraint::Filter Constraint::filter() const {
  return [self = shared_from_this(), reader = Reader()](std::span<const TokenId> generated,
                                                        std::vector<bool>& allowed) mutable {
    const std::lock_guard lock(self->mutex_);
    self->apply(reader, generated, allowed);
  };
}

void Constraint::apply(Reader& reader, std::span<const TokenId> generated, std::vector<bool>& allowed) const {
  if (automaton_.num_states() > kMaxStates || automaton_.num_nodes() > kMaxNodes) {
    automaton_.reset();
    masks_.clear();
    ++epoch_;
  }
  automaton_.allow_steps(kMaxSteps);
  if (reader.epoch != epoch_ || reader.consumed > generated.size()) reader = {.epoch = epoch_};
  for (; reader.consumed < generated.size(); ++reader.consumed)
    for (const char byte : tokenizer_.token_bytes(generated[reader.consumed]))
      reader.state = automaton_.next(reader.state, static_cast<uint8_t>(byte));
  const size_t width = std::max(allowed.size(), trie_->vocab_size());
  bool complete = reader.state == ByteAutomaton::kDead;
  if (complete) {
    allowed.assign(width, false);
  } else {
    allowed = mask(reader.state);
    complete = automaton_.accepts(reader.state) || std::find(allowed.begin(), allowed.end(), true) == allowed.end();
    allowed.resize(width, false);
  }
  if (complete)
    for (const TokenId id : ends_) allowed[static_cast<size_t>(id)] = true;
}

const std::vector<bool>& Constraint::mask(ByteAutomaton::State state) const {
  if (const auto found = masks_.find(state); found != masks_.end()) return found->second;
  if (masks_.size() >= kMaxMasks) masks_.clear();
  std::vector<bool> allowed(trie_->vocab_size(), false);
  trie_->mark(automaton_, state, allowed);
  return masks_.emplace(state, std::move(allowed)).first->second;
}

std::shared_ptr<const Constraint> ConstraintCompiler::known(const std::string& key) const {
  for (const auto& [text, constraint] : known_)
    if (text == key) return constraint;
  return nullptr;
}

ApiResult<std::shared_ptr<const Constraint>> ConstraintCompiler::add(std::string key, ByteGrammar grammar) {
  if (trie_ == nullptr) {
    trie_ = std::make_shared<TokenTrie>(engine_.tokenizer());
    for (size_t i = 0; i < trie_->vocab_size(); ++i)
      if (engine_.is_end(static_cast<TokenId>(i))) ends_.push_back(static_cast<TokenId>(i));
  }
  std::shared_ptr<const Constraint> constraint;
  try {
    constraint = std::make_shared<Constraint>(std::move(grammar), trie_, ends_, engine_.tokenizer());
  } catch (const GrammarTooComplex& error) {  // before the first byte
    return refuse({.message = error.what(), .code = "invalid_schema"});
  }
  if (constraint->is_empty()) return refuse({.message = "no JSON value follows this schema", .code = "invalid_schema"});
  known_.emplace_front(std::move(key), constraint);
  if (known_.size() > kMaxKnown) known_.pop_back();
  return constraint;
}

ApiResult<std::shared_ptr<const Constraint>> ConstraintCompiler::json_object() {
  if (auto constraint = known("object")) return constraint;
  return add("object", grammar_of_json_object());
}

ApiResult<std::shared_ptr<const Constraint>> ConstraintCompiler::json_schema(const Json& schema) {
  if (schema.is_string()) {
    const Result<Json> parsed = parse_json(schema.get_ref<const std::string&>(), "the JSON schema");
    if (!parsed) return refuse(api_error_of(parsed.error(), 400));
    if (!parsed->is_object()) return refuse({.message = "the JSON schema must be an object"});
    return json_schema(*parsed);
  }
  std::string key = "schema " + to_text(schema);
  if (key.size() > kMaxSchemaBytes) return refuse(too_many_bytes());
  if (auto constraint = known(key)) return constraint;
  OCTAVO_API_ASSIGN(ByteGrammar grammar, grammar_of_schema(schema));
  return add(std::move(key), std::move(grammar));
}

ApiResult<std::shared_ptr<const Constraint>> ConstraintCompiler::calls(const std::vector<std::string>& names,
                                                                       const Json& schemas) {
  std::string key = "calls " + to_text(Json(names)) + to_text(schemas);
  if (key.size() > kMaxSchemaBytes) return refuse(too_many_bytes());
  if (auto constraint = known(key)) return constraint;
  OCTAVO_API_ASSIGN(ByteGrammar grammar, grammar_of_calls(names, schemas));
  return add(std::move(key), std::move(grammar));
}

ApiResult<std::shared_ptr<const Constraint>> ConstraintCompiler::choice(const Json& choices) {
  std::vector<std::string> texts;
  for (const Json& text : choices) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty() ||
        text.get_ref<const std::string&>().size() > kMaxChoiceBytes)
      return refuse({.message = fmt::format("a choice must be a string of 1 to {} bytes", kMaxChoiceBytes)});
    texts.push_back(text.get<std::string>());
  }
  if (texts.empty() || texts.size() > kMaxChoices)
    return refuse({.message = fmt::format("there must be 1 to {} choices", kMaxChoices)});
  std::string key = "choice " + to_text(choices);
  if (auto constraint = known(key)) return constraint;
  return add(std::move(key), grammar_of_choices(texts));
}

}  // namespace octavo
