// The pieces of a vocabulary by id, and the ids by piece.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace octavo {

// Keeps copies of texts at fixed addresses.
class TextArena {
 public:
  std::string_view add(std::string_view text);

 private:
  std::vector<std::unique_ptr<char[]>> blocks_;
  size_t left_ = 0;
  char* next_ = nullptr;
};

class Vocabulary {
 public:
  // Ids must lie below `id_limit`: what the source can plausibly hold, so that one lying id cannot ask for gigabytes.
  explicit Vocabulary(size_t id_limit);

  void reserve(size_t pieces);
  // Errors: id out of range, id or piece given twice.
  Result<void> add(int64_t id, std::string_view piece);
  // Names an id without making the piece findable (added tokens have their own rules). The same piece again is fine.
  Result<void> name(int64_t id, std::string_view piece);

  std::optional<TokenId> find(std::string_view piece) const;
  // Empty for ids that are not in the vocabulary.
  std::string_view piece(TokenId id) const;
  bool contains(TokenId id) const;
  size_t size() const { return pieces_.size(); }  // highest id + 1
  size_t count() const { return count_; }         // findable pieces

 private:
  struct Slot {
    uint32_t hash = 0;
    TokenId id = -1;
  };
  Result<void> check_id(int64_t id, std::string_view piece) const;
  void store(TokenId id, std::string_view piece);
  void rehash(size_t capacity);
  size_t position(std::string_view piece, uint32_t hash) const;  // its slot, or the free one where it belongs

  size_t id_limit_;
  uint64_t seed_;
  TextArena arena_;
  std::vector<std::string_view> pieces_;  // data() == nullptr: no such id
  std::vector<Slot> slots_;
  size_t count_ = 0;
};

}  // namespace octavo
