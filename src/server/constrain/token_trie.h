// TokenTrie: the bytes of every token that text may be made of, as a tree in depth-first order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "server/constrain/byte_grammar.h"
#include "text/tokenizer.h"

namespace octavo {

class TokenTrie {
 public:
  // Without special tokens and tokens of no bytes.
  explicit TokenTrie(const Tokenizer& tokenizer);

  // Marks the tokens whose bytes `automaton` can read from `state`. allowed: [vocab_size], all false.
  void mark(ByteAutomaton& automaton, ByteAutomaton::State state, std::vector<bool>& allowed) const;
  size_t vocab_size() const { return vocab_size_; }

 private:
  struct Node {
    uint32_t end;          // index of the first node after the subtree
    uint32_t first_token;  // of the tokens that end here; they end where the next node's begin
    uint32_t num_tokens;
    uint16_t depth;  // bytes from the root, this one included
    uint8_t byte;
  };
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;
  size_t vocab_size_ = 0, max_depth_ = 0;
};

}  // namespace octavo
