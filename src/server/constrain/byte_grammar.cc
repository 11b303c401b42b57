#include "server/constrain/byte_grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <queue>

#include "base/check.h"

namespace octavo {

ByteGrammar::Symbol ByteGrammar::add_rule() {
  rules_.emplace_back();
  return {Symbol::kRule, false, static_cast<uint32_t>(rules_.size() - 1)};
}

void ByteGrammar::add_alternative(Symbol rule, const Sequence& sequence) {
  OCTAVO_CHECK(sequence.empty() || !sequence.back().inner);
  rules_[rule.index].push_back({static_cast<uint32_t>(symbols_.size())});
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
  return {Symbol::kBytes, false, found->second};
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

uint32_t ByteGrammar::prune() {
  // Dijkstra over rules: an alternative is known when all rules in it are, and is no less high than any of them.
  struct Use {
    Alternative* alternative;
    uint32_t owner, added;
  };
  constexpr uint32_t kUnknown = UINT32_MAX;
  std::vector<std::vector<Use>> uses(rules_.size());
  std::vector<uint32_t> heights(rules_.size(), kUnknown), missing(symbols_.size(), 0);
  using Ready = std::pair<uint32_t, uint32_t>;  // height, rule
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  for (uint32_t rule = 0; rule < rules_.size(); ++rule)
    for (Alternative& alternative : rules_[rule]) {
      for (uint32_t at = alternative.position; symbols_[at].kind != Symbol::kEnd; ++at)
        if (symbols_[at].kind == Symbol::kRule) {
          uses[symbols_[at].index].push_back({&alternative, rule, symbols_[at].inner ? 1u : 0u});
          ++missing[alternative.position];
        }
      if (missing[alternative.position] == 0) ready.emplace(0, rule);
    }
  while (!ready.empty()) {
    const auto [height, rule] = ready.top();
    ready.pop();
    if (heights[rule] != kUnknown) continue;
    heights[rule] = height;
    for (const auto& [alternative, owner, added] : uses[rule]) {
      alternative->height = std::max(alternative->height, height + added);
      if (--missing[alternative->position] == 0) ready.emplace(alternative->height, owner);
    }
  }
  for (std::vector<Alternative>& alternatives : rules_)
    std::erase_if(alternatives, [&](const Alternative& a) { return missing[a.position] > 0; });
  return heights[root_] == kUnknown ? 0 : heights[root_];
}

ByteAutomaton::ByteAutomaton(ByteGrammar grammar) : grammar_(std::move(grammar)) {
  max_depth_ = grammar_.prune() + kMaxDepth;
  reset();
}

void ByteAutomaton::reset() {
  nodes_.assign(1, Node{0, 0, 0});
  node_index_.clear();
  states_.clear();
  state_index_.clear();
  StateData first;
  seen_.clear();
  work_.clear();
  steps_left_ = INT64_MAX;
  for (const ByteGrammar::Alternative& alternative : grammar_.rules_[grammar_.root_])
    close(alternative.position, 0, first);
  intern(std::move(first));
}

void ByteAutomaton::spend(size_t steps) {
  steps_left_ -= static_cast<int64_t>(steps);
  if (steps_left_ < 0) throw GrammarTooComplex("it takes too long to find out which tokens may follow");
}

uint32_t ByteAutomaton::node(uint32_t position, uint32_t parent) {
  const uint64_t key = static_cast<uint64_t>(position) << 32 | parent;
  const auto [found, added] = node_index_.emplace(key, static_cast<uint32_t>(nodes_.size()));
  if (added) {
    if (nodes_.size() >= kMaxNodes) {
      node_index_.erase(found);
      throw GrammarTooComplex(fmt::format("there are more than {} ways to read answers", kMaxNodes));
    }
    const bool inner = position > 0 && grammar_.symbols_[position - 1].inner;
    nodes_.push_back({position, parent, nodes_[parent].depth + (inner ? 1 : 0)});
  }
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
    spend(1);
    if (symbol.kind == Symbol::kBytes) {
      if (out.nodes.size() >= kMaxStacks)
        throw GrammarTooComplex(fmt::format("there are more than {} ways to read the answer so far", kMaxStacks));
      out.nodes.push_back(node(at, below));
    } else if (symbol.kind == Symbol::kEnd) {
      if (below == 0)
        out.accepts = true;
      else
        work_.emplace_back(nodes_[below].position, nodes_[below].parent);
    } else {
      uint32_t back = below;
      if (grammar_.symbols_[at + 1].kind != Symbol::kEnd) back = node(at + 1, below);
      for (const auto& [first, height] : grammar_.rules_[symbol.index])
        if (nodes_[back].depth + height <= max_depth_) work_.emplace_back(first, back);
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
  if (states_.size() >= kMaxStates)
    throw GrammarTooComplex(fmt::format("there are more than {} places in answers", kMaxStates));
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
  work_.clear();  // a throw may have left some
  spend(states_[static_cast<size_t>(state)].nodes.size());
  for (const uint32_t id : states_[static_cast<size_t>(state)].nodes) {
    const Node at = nodes_[id];
    if (grammar_.sets_[grammar_.symbols_[at.position].index][byte]) close(at.position + 1, at.parent, after);
  }
  const State result = after.nodes.empty() && !after.accepts ? kDead : intern(std::move(after));
  states_[static_cast<size_t>(state)].next[byte] = result;
  return result;
}

}  // namespace octavo
