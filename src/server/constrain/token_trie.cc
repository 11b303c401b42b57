#include "server/constrain/token_trie.h"

#include <algorithm>
#include <string>

namespace octavo {

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : vocab_size_(tokenizer.vocab_size()) {
  constexpr size_t kMaxBytes = 4096;
  std::vector<std::pair<std::string, TokenId>> sorted;
  for (size_t i = 0; i < vocab_size_; ++i) {
    const auto id = static_cast<TokenId>(i);
    std::string bytes = tokenizer.token_bytes(id);
    if (!bytes.empty() && bytes.size() <= kMaxBytes && !tokenizer.is_special(id))
      sorted.emplace_back(std::move(bytes), id);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<size_t> path;  // the nodes from the root to the last token
  std::string_view last;
  for (const auto& [bytes, id] : sorted) {
    const auto shared =
        static_cast<size_t>(std::mismatch(last.begin(), last.end(), bytes.begin(), bytes.end()).first - last.begin());
    for (; path.size() > shared; path.pop_back()) nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
    for (size_t i = shared; i < bytes.size(); ++i) {
      path.push_back(nodes_.size());
      nodes_.push_back(
          {0, static_cast<uint32_t>(tokens_.size()), 0, static_cast<uint16_t>(i + 1), static_cast<uint8_t>(bytes[i])});
    }
    tokens_.push_back(id);
    ++nodes_[path.back()].num_tokens;
    max_depth_ = std::max(max_depth_, bytes.size());
    last = bytes;
  }
  for (; !path.empty(); path.pop_back()) nodes_[path.back()].end = static_cast<uint32_t>(nodes_.size());
}

void TokenTrie::mark(ByteAutomaton& automaton, ByteAutomaton::State state, std::vector<bool>& allowed) const {
  std::vector<ByteAutomaton::State> states(max_depth_ + 1, ByteAutomaton::kDead);
  states[0] = state;
  for (size_t i = 0; i < nodes_.size();) {
    const Node& node = nodes_[i];
    const ByteAutomaton::State after = automaton.next(states[node.depth - 1u], node.byte);
    if (after == ByteAutomaton::kDead) {
      i = node.end;
      continue;
    }
    states[node.depth] = after;
    for (uint32_t t = 0; t < node.num_tokens; ++t) allowed[static_cast<size_t>(tokens_[node.first_token + t])] = true;
    ++i;
  }
}

}  // namespace octavo
