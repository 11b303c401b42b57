// Byte-pair encoding of one piece of text at a time: from bytes (byte-level), or from characters with bytes as the way
// out (SentencePiece).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/hash_tables.h"
#include "text/vocabulary.h"

namespace octavo {

struct BpeOptions {
  bool ignore_merges = false;  // a piece that is a token as a whole is that token
  bool fuse_unk = false;       // a run of unknown bytes or characters gives one unknown token
  bool byte_fallback = false;  // symbols are characters; one that is no token becomes tokens "<0xHH>", where all exist
  std::optional<TokenId> unk;  // for what the vocabulary lacks; without it that vanishes
};

// Remembers the ids of short pieces. A piece may push another one out; nothing grows.
class PieceCache {
 public:
  static constexpr size_t kMaxBytes = 30, kMaxIds = 8;
  explicit PieceCache(size_t entries_log2);

  // Appends the remembered ids of `piece` (at most kMaxBytes); false if it is not there.
  bool get(std::string_view piece, uint64_t hash, std::vector<TokenId>& ids) const;
  void put(std::string_view piece, uint64_t hash, const TokenId* ids, size_t count);
  uint64_t hash(std::string_view piece) const { return hash_bytes(piece, seed_); }

 private:
  struct Entry {
    uint8_t num_bytes = 0, num_ids = 0;
    char bytes[kMaxBytes];
    TokenId ids[kMaxIds];
  };
  uint64_t seed_;
  std::vector<Entry> entries_;
};

class Bpe {
 public:
  void reserve(size_t merges) {
    merges_.reserve(merges);
    order_.reserve(merges);
  }
  // The next merge in order of rank. Error: a part or the result is not in the vocabulary. The same pair given again
  // takes the later rank.
  Result<void> add_merge(const Vocabulary& vocabulary, std::string_view left, std::string_view right);
  // A merge of a rank that it may share with others: of these the leftmost pair goes first.
  void add_ranked_merge(TokenId left, TokenId right, TokenId merged, uint32_t rank) {
    merges_[key(left, right)] = {rank, merged};
    order_.push_back({left, right});
  }
  // After the vocabulary is complete.
  void finish(const Vocabulary& vocabulary, BpeOptions options);

  // Appends the ids of `piece` (bytes). O(n log n).
  void encode(const Vocabulary& vocabulary, std::string_view piece, PieceCache& cache, std::vector<TokenId>& ids) const;

  struct Pair {
    TokenId left, right;
  };
  const std::vector<Pair>& merges() const { return order_; }
  const BpeOptions& options() const { return options_; }

 private:
  struct Merge {
    uint32_t rank = UINT32_MAX;
    TokenId merged = -1;
  };
  static uint64_t key(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  Merge find(TokenId left, TokenId right) const {
    const Merge* merge = merges_.find(key(left, right));
    return merge == nullptr ? Merge{} : *merge;
  }
  void encode_uncached(const Vocabulary& vocabulary, std::string_view piece, std::vector<TokenId>& ids) const;
  void append_symbols(std::string_view piece, std::vector<TokenId>& ids) const;
  void append_characters(const Vocabulary& vocabulary, std::string_view piece, std::vector<TokenId>& ids) const;
  void merge_short(std::vector<TokenId>& ids, size_t start) const;
  void merge_long(std::vector<TokenId>& ids, size_t start) const;

  FlatMap<Merge> merges_;
  std::vector<Pair> order_;
  TokenId expected_ = -1;  // the result of the next merge, if the file numbers them in order
  std::array<TokenId, 256> byte_ids_{};
  BpeOptions options_;
};

}  // namespace octavo
