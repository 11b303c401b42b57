// Added tokens: texts such as <|im_start|> that are found before anything else is done to a text.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/hash_tables.h"
#include "text/tokenizer.h"

namespace octavo {

struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // swallows white space after it
  bool normalized = true;    // looked for in the normalized text, by its normalized content
  bool special = false;      // left out of decoded text; recognised only if the caller allows
};

// Finds a set of added tokens in a text: leftmost first, the longest where several begin.
class AddedTokenMatcher {
 public:
  static constexpr size_t kMaxContent = 4096;  // bytes

  // `content` may differ from token.content (normalized). Empty contents are never found.
  void add(const AddedToken& token, std::string_view content);
  bool empty() const { return tokens_.empty(); }

  // A part of a text: an added token (id >= 0), or text between (id < 0).
  struct Part {
    std::string_view text;
    TokenId id;
  };
  // Appends the parts of `text`. Special tokens are passed over as text if !parse_special.
  void split(std::string_view text, bool parse_special, std::vector<Part>& parts) const;

 private:
  struct Token {
    TokenId id;
    bool single_word, lstrip, rstrip, special;
  };
  struct Found {
    size_t begin, end;
    const Token* token;
  };
  bool find_next(std::string_view text, size_t from, Found& found) const;

  std::vector<Token> tokens_;
  std::array<bool, 256> starts_{};
  FlatMap<uint32_t> edges_;           // (node << 8 | byte) -> node; the root is 0
  std::vector<int32_t> ends_ = {-1};  // node -> index of the token that ends there
};

}  // namespace octavo
