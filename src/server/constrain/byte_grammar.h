// ByteGrammar: a context-free grammar over bytes. ByteAutomaton: reads bytes by it, one at a time, keeping every
// possible parse (a set of stacks), made deterministic and remembered as it goes.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace octavo {

using ByteSet = std::bitset<256>;

class ByteGrammar {
 public:
  struct Symbol {
    enum Kind : uint8_t { kBytes, kRule, kEnd } kind = kEnd;
    bool inner = false;  // a rule one level further down: an array's item, a member's value
    uint32_t index = 0;  // of a set, or of a rule
  };
  using Sequence = std::vector<Symbol>;

  // A new rule without alternatives: it matches nothing until it gets some.
  Symbol add_rule();
  // `rule`, one level further down. It must not be the last symbol of a sequence, and every rule that comes back to
  // itself with something left to read after it must do so through one: levels are what is limited.
  static Symbol inner(Symbol rule) { return {Symbol::kRule, true, rule.index}; }
  void add_alternative(Symbol rule, const Sequence& sequence);
  Symbol rule_of(const std::vector<Sequence>& alternatives);

  Symbol any_of(const ByteSet& set);
  Symbol any_of(std::string_view bytes);
  Symbol range(uint8_t first, uint8_t last);
  static void append(Sequence& sequence, const Sequence& more) {
    sequence.insert(sequence.end(), more.begin(), more.end());
  }
  Sequence literal(std::string_view text);
  // `symbol` min to max times. As many rules as max.
  Symbol repeat(Symbol symbol, int64_t min, int64_t max);
  Symbol optional(const Sequence& sequence) { return rule_of({sequence, {}}); }

  void set_root(Symbol rule) { root_ = rule.index; }
  size_t size() const { return symbols_.size() + rules_.size(); }

 private:
  friend class ByteAutomaton;
  struct Alternative {
    uint32_t position;    // of its first symbol
    uint32_t height = 0;  // levels that its least deep text has; set by prune()
  };
  // Takes out the alternatives that no text can complete (a rule that needs itself), finds the heights of the others
  // and returns that of the root. In O(n log n).
  uint32_t prune();

  std::vector<Symbol> symbols_;  // the alternatives, each closed by kEnd
  std::vector<std::vector<Alternative>> rules_;
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, uint32_t> set_index_;
  uint32_t root_ = 0;
};

// A grammar that has too many ways to read a text, or takes too long to follow.
class GrammarTooComplex : public std::runtime_error {
 public:
  static constexpr const char* kWhat = "the output format is too complex for constrained decoding: ";
  explicit GrammarTooComplex(const std::string& why) : std::runtime_error(kWhat + why) {}
};

class ByteAutomaton {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;
  // Levels beyond those that the grammar cannot do without. Down there, only alternatives are left that need no further
  // ones, so that there always is a way on.
  static constexpr uint32_t kMaxDepth = 50;
  static constexpr size_t kMaxStacks = 8192;      // of one state
  static constexpr size_t kMaxNodes = 2'000'000;  // of all stacks together
  static constexpr size_t kMaxStates = 100'000;

  explicit ByteAutomaton(ByteGrammar grammar);

  State start() const { return 0; }
  // Throws GrammarTooComplex beyond the limits above, and when the steps are used up; then reset() and a new allowance
  // make it usable again.
  State next(State state, uint8_t byte);
  // Stacks that next() may look at from now on.
  void allow_steps(int64_t steps) { steps_left_ = steps; }
  bool accepts(State state) const { return states_[static_cast<size_t>(state)].accepts; }
  // The grammar matches no text at all.
  bool is_empty() const { return states_[0].nodes.empty() && !states_[0].accepts; }
  size_t num_states() const { return states_.size(); }
  size_t num_nodes() const { return nodes_.size(); }
  // Forgets every state but start().
  void reset();

 private:
  // A stack: what is to be read next, and what after that (an index of a node; 0: nothing).
  struct Node {
    uint32_t position, parent, depth;
  };
  struct StateData {
    std::vector<uint32_t> nodes;  // sorted; each stands at a set of bytes
    bool accepts = false;
    std::array<State, 256> next;
  };
  static constexpr State kUnknown = -2;

  void spend(size_t steps);
  uint32_t node(uint32_t position, uint32_t parent);
  void close(uint32_t position, uint32_t parent, StateData& out);
  State intern(StateData state);

  ByteGrammar grammar_;
  uint32_t max_depth_ = 0;
  int64_t steps_left_ = INT64_MAX;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, uint32_t> node_index_;
  std::vector<StateData> states_;
  std::unordered_multimap<size_t, State> state_index_;
  std::vector<std::pair<uint32_t, uint32_t>> work_;
  std::unordered_map<uint64_t, bool> seen_;
};

}  // namespace octavo
