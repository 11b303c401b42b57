#include "server/constrain/byte_grammar.h"

#include <algorithm>

namespace octavo {

ByteGrammar::Symbol ByteGrammar::add_rule() {
  rules_.emplace_back();
  limited_.push_back(false);
  return {Symbol::kRule, static_cast<uint32_t>(rules_.size() - 1)};
}

void ByteGrammar::add_alternative(Symbol rule, const Sequence& sequence) {
  rules_[rule.index].push_back(static_cast<uint32_t>(symbols_.size()));
  append(symbols_, sequence);
  symbols_.push_back({});
}

ByteGrammar::Symbol ByteGrammar::rule_of(const std::vector<Sequence>& alternatives) {
  const Symbol rule = add_rule();
  for (const Sequence& sequence : alternatives) add_alternative(rule, sequence);
  return rule;
}

ByteGrammar::Symbol ByteGrammar::any_of(const ByteSet& set) {
  const auto [found, added] = set_index_.emplace(set, static_cast<uint32_t>(sets_.size()));
  if (added) sets_.push_back(set);
  return {Symbol::kBytes, found->second};
}

ByteGrammar::Symbol ByteGrammar::any_of(std::string_view bytes) {
  ByteSet set;
  for (const char c : bytes) set.set(static_cast<uint8_t>(c));
  return any_of(set);
}

ByteGrammar::Symbol ByteGrammar::range(uint8_t first, uint8_t last) {
  ByteSet set;
  for (int byte = first; byte <= last; ++byte) set.set(static_cast<size_t>(byte));
  return any_of(set);
}

ByteGrammar::Sequence ByteGrammar::literal(std::string_view text) {
  Sequence sequence;
  sequence.reserve(text.size());
  for (const char c : text) sequence.push_back(any_of(std::string_view(&c, 1)));
  return sequence;
}

ByteGrammar::Symbol ByteGrammar::repeat(Symbol symbol, int64_t min, int64_t max) {
  Symbol rest = rule_of({{}});
  for (int64_t count = max; count-- > 0;) {
    const Symbol rule = rule_of({{symbol, rest}});
    if (count >= min) add_alternative(rule, {});
    rest = rule;
  }
  return rest;
}

void ByteGrammar::prune() {
  std::vector<bool> productive(rules_.size(), false);
  const auto completes = [&](uint32_t at) {
    for (; symbols_[at].kind != Symbol::kEnd; ++at)
      if (symbols_[at].kind == Symbol::kRule && !productive[symbols_[at].index]) return false;
    return true;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t rule = rules_.size(); rule-- > 0;) {
      if (productive[rule] || std::none_of(rules_[rule].begin(), rules_[rule].end(), completes)) continue;
      productive[rule] = changed = true;
    }
  }
  for (std::vector<uint32_t>& alternatives : rules_)
    std::erase_if(alternatives, [&](uint32_t at) { return !completes(at); });
}

ByteAutomaton::ByteAutomaton(ByteGrammar grammar) : grammar_(std::move(grammar)) {
  grammar_.prune();
  reset();
}

void ByteAutomaton::reset() {
  nodes_.assign(1, Node{0, 0, 0});
  node_index_.clear();
  states_.clear();
  state_index_.clear();
  StateData first;
  seen_.clear();
  for (const uint32_t position : grammar_.rules_[grammar_.root_]) close(position, 0, first);
  intern(std::move(first));
}

uint32_t ByteAutomaton::node(uint32_t position, uint32_t parent) {
  const uint64_t key = static_cast<uint64_t>(position) << 32 | parent;
  const auto [found, added] = node_index_.emplace(key, static_cast<uint32_t>(nodes_.size()));
  if (added) nodes_.push_back({position, parent, nodes_[parent].depth + 1});
  return found->second;
}

// Follows rules from `position` until every stack stands at a set of bytes, or is empty.
void ByteAutomaton::close(uint32_t position, uint32_t parent, StateData& out) {
  using Symbol = ByteGrammar::Symbol;
  work_.emplace_back(position, parent);
  while (!work_.empty()) {
    const auto [at, below] = work_.back();
    work_.pop_back();
    if (!seen_.emplace(static_cast<uint64_t>(at) << 32 | below, true).second) continue;
    const Symbol symbol = grammar_.symbols_[at];
    if (symbol.kind == Symbol::kBytes) {
      out.nodes.push_back(node(at, below));
    } else if (symbol.kind == Symbol::kEnd) {
      if (below == 0)
        out.accepts = true;
      else
        work_.emplace_back(nodes_[below].position, nodes_[below].parent);
    } else {
      uint32_t back = below;
      if (grammar_.limited_[symbol.index] && nodes_[below].depth >= kMaxDepth) continue;
      if (grammar_.symbols_[at + 1].kind != Symbol::kEnd) back = node(at + 1, below);
      for (const uint32_t alternative : grammar_.rules_[symbol.index]) work_.emplace_back(alternative, back);
    }
  }
}

ByteAutomaton::State ByteAutomaton::intern(StateData state) {
  std::sort(state.nodes.begin(), state.nodes.end());
  state.nodes.erase(std::unique(state.nodes.begin(), state.nodes.end()), state.nodes.end());
  size_t hash = state.accepts;
  for (const uint32_t id : state.nodes) hash = hash * 0x9E3779B97F4A7C15ull + id;
  const auto [begin, end] = state_index_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    const StateData& known = states_[static_cast<size_t>(at->second)];
    if (known.accepts == state.accepts && known.nodes == state.nodes) return at->second;
  }
  const auto id = static_cast<State>(states_.size());
  state.next.fill(kUnknown);
  states_.push_back(std::move(state));
  state_index_.emplace(hash, id);
  return id;
}

ByteAutomaton::State ByteAutomaton::next(State state, uint8_t byte) {
  if (state == kDead) return kDead;
  const State known = states_[static_cast<size_t>(state)].next[byte];
  if (known != kUnknown) return known;
  StateData after;
  seen_.clear();
  for (const uint32_t id : states_[static_cast<size_t>(state)].nodes) {
    const Node at = nodes_[id];
    if (grammar_.sets_[grammar_.symbols_[at.position].index][byte]) close(at.position + 1, at.parent, after);
  }
  const State result = after.nodes.empty() && !after.accepts ? kDead : intern(std::move(after));
  states_[static_cast<size_t>(state)].next[byte] = result;
  return result;
}

}  // namespace octavo
