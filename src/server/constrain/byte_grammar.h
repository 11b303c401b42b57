// ByteGrammar: a context-free grammar over bytes. ByteAutomaton: reads bytes by it, one at a time, keeping every
// possible parse (a set of stacks), made deterministic and remembered as it goes.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace octavo {

using ByteSet = std::bitset<256>;

class ByteGrammar {
 public:
  struct Symbol {
    enum Kind : uint8_t { kBytes, kRule, kEnd } kind = kEnd;
    uint32_t index = 0;  // of a set, or of a rule
  };
  using Sequence = std::vector<Symbol>;

  // A new rule without alternatives: it matches nothing until it gets some.
  Symbol add_rule();
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
  // Below kMaxDepth open rules this one matches nothing: bounds what nests without end. There must be another way on.
  void limit_depth(Symbol rule) { limited_[rule.index] = true; }
  size_t size() const { return symbols_.size() + rules_.size(); }

 private:
  friend class ByteAutomaton;
  // Takes out the alternatives that no text can complete (a rule that needs itself).
  void prune();

  std::vector<Symbol> symbols_;               // the alternatives, each closed by kEnd
  std::vector<std::vector<uint32_t>> rules_;  // where the alternatives begin
  std::vector<bool> limited_;                 // by rule
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, uint32_t> set_index_;
  uint32_t root_ = 0;
};

class ByteAutomaton {
 public:
  using State = int32_t;
  static constexpr State kDead = -1;
  static constexpr uint32_t kMaxDepth = 128;

  explicit ByteAutomaton(ByteGrammar grammar);

  State start() const { return 0; }
  State next(State state, uint8_t byte);
  bool accepts(State state) const { return states_[static_cast<size_t>(state)].accepts; }
  // The grammar matches no text at all.
  bool is_empty() const { return states_[0].nodes.empty() && !states_[0].accepts; }
  size_t num_states() const { return states_.size(); }
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

  uint32_t node(uint32_t position, uint32_t parent);
  void close(uint32_t position, uint32_t parent, StateData& out);
  State intern(StateData state);

  ByteGrammar grammar_;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, uint32_t> node_index_;
  std::vector<StateData> states_;
  std::unordered_multimap<size_t, State> state_index_;
  std::vector<std::pair<uint32_t, uint32_t>> work_;
  std::unordered_map<uint64_t, bool> seen_;
};

}  // namespace octavo
