#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>
#include <string>

#include "text/byte_level.h"
#include "text/utf8.h"

namespace octavo {
namespace {

// Up to here a scan for the best pair beats a heap.
constexpr size_t kShort = 64;

}  // namespace

PieceCache::PieceCache(size_t entries_log2) : seed_(process_hash_seed()), entries_(size_t{1} << entries_log2) {}

bool PieceCache::get(std::string_view piece, uint64_t hash, std::vector<TokenId>& ids) const {
  const Entry& entry = entries_[hash & (entries_.size() - 1)];
  if (entry.num_bytes != piece.size() || std::string_view(entry.bytes, entry.num_bytes) != piece) return false;
  ids.insert(ids.end(), entry.ids, entry.ids + entry.num_ids);
  return true;
}

void PieceCache::put(std::string_view piece, uint64_t hash, const TokenId* ids, size_t count) {
  if (piece.empty() || piece.size() > kMaxBytes || count > kMaxIds) return;
  Entry& entry = entries_[hash & (entries_.size() - 1)];
  entry.num_bytes = static_cast<uint8_t>(piece.size());
  entry.num_ids = static_cast<uint8_t>(count);
  std::copy(piece.begin(), piece.end(), entry.bytes);
  std::copy(ids, ids + count, entry.ids);
}

Result<void> Bpe::add_merge(const Vocabulary& vocabulary, std::string_view left, std::string_view right) {
  char buffer[256];
  std::string long_buffer;
  std::string_view merged;
  const size_t size = left.size() + right.size();
  if (size <= sizeof(buffer)) {
    std::copy(right.begin(), right.end(), std::copy(left.begin(), left.end(), buffer));
    merged = {buffer, size};
  } else {
    merged = long_buffer.append(left).append(right);
  }
  std::optional<TokenId> ids[3];
  const std::string_view pieces[3] = {left, right, merged};
  // Most files number the results of merges in the order of the merges: then no search is needed.
  if (vocabulary.contains(expected_) && vocabulary.piece(expected_) == merged) ids[2] = expected_;
  for (int i = 0; i < 3; ++i) {
    if (!ids[i]) ids[i] = vocabulary.find(pieces[i]);
    if (!ids[i])
      return fail({.what = "a merge names a token that is not in the vocabulary",
                   .where = fmt::format("merge {}: \"{}\" + \"{}\"", order_.size(), left, right),
                   .found = fmt::format("\"{}\"", pieces[i]),
                   .expected = "both parts and their concatenation in the vocabulary"});
  }
  merges_[key(*ids[0], *ids[1])] = {static_cast<uint32_t>(order_.size()), *ids[2]};
  order_.push_back({*ids[0], *ids[1]});
  expected_ = *ids[2] + 1;
  return {};
}

void Bpe::finish(const Vocabulary& vocabulary, BpeOptions options) {
  options_ = options;
  for (int b = 0; b < 256; ++b) {
    std::string symbol;
    if (options.byte_fallback)
      symbol = fmt::format("<0x{:02X}>", b);
    else
      append_utf8(byte_level_code_point(static_cast<uint8_t>(b)), symbol);
    byte_ids_[static_cast<size_t>(b)] = vocabulary.find(symbol).value_or(-1);
  }
}

void Bpe::encode(const Vocabulary& vocabulary, std::string_view piece, PieceCache& cache,
                 std::vector<TokenId>& ids) const {
  if (piece.size() > PieceCache::kMaxBytes) return encode_uncached(vocabulary, piece, ids);
  const uint64_t hash = cache.hash(piece);
  if (cache.get(piece, hash, ids)) return;
  const size_t start = ids.size();
  encode_uncached(vocabulary, piece, ids);
  cache.put(piece, hash, ids.data() + start, ids.size() - start);
}

void Bpe::encode_uncached(const Vocabulary& vocabulary, std::string_view piece, std::vector<TokenId>& ids) const {
  if (options_.ignore_merges) {
    std::string text;
    if (options_.byte_fallback)
      text = piece;
    else
      append_byte_level(piece, text);
    if (const auto id = vocabulary.find(text)) {
      ids.push_back(*id);
      return;
    }
  }
  const size_t start = ids.size();
  if (options_.byte_fallback)
    append_characters(vocabulary, piece, ids);
  else
    append_symbols(piece, ids);
  const size_t count = ids.size() - start;
  if (count < 2) return;
  if (count <= kShort) return merge_short(ids, start);
  merge_long(ids, start);
}

void Bpe::append_symbols(std::string_view piece, std::vector<TokenId>& ids) const {
  bool last_unknown = false;
  for (const char c : piece) {
    const TokenId id = byte_ids_[static_cast<uint8_t>(c)];
    if (id >= 0) {
      ids.push_back(id);
    } else if (options_.unk && !(options_.fuse_unk && last_unknown)) {
      ids.push_back(*options_.unk);
    }
    // Without an unknown token the byte leaves no trace.
    if (id >= 0 || options_.unk) last_unknown = id < 0;
  }
}

void Bpe::append_characters(const Vocabulary& vocabulary, std::string_view piece, std::vector<TokenId>& ids) const {
  bool last_unknown = false;
  for (size_t at = 0; at < piece.size();) {
    const auto size = static_cast<size_t>(utf8_step(piece, at).size);
    const std::string_view character = piece.substr(at, size);
    at += size;
    if (const auto id = vocabulary.find(character)) {
      ids.push_back(*id);
      last_unknown = false;
      continue;
    }
    const auto known = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] >= 0; };
    if (std::all_of(character.begin(), character.end(), known)) {
      for (const char c : character) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
      last_unknown = false;
    } else if (options_.unk) {
      if (!(options_.fuse_unk && last_unknown)) ids.push_back(*options_.unk);
      last_unknown = true;
    }
  }
}

void Bpe::merge_short(std::vector<TokenId>& ids, size_t start) const {
  TokenId* symbols = ids.data() + start;
  size_t count = ids.size() - start;
  Merge pairs[kShort];
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == UINT32_MAX) break;
    symbols[best] = pairs[best].merged;
    std::copy(symbols + best + 2, symbols + count, symbols + best + 1);
    if (best + 2 < count) std::copy(pairs + best + 2, pairs + count - 1, pairs + best + 1);
    --count;
    if (best > 0) pairs[best - 1] = find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = find(symbols[best], symbols[best + 1]);
  }
  ids.resize(start + count);
}

void Bpe::merge_long(std::vector<TokenId>& ids, size_t start) const {
  // Symbols in a linked list; candidates in a heap, checked for being current when they are taken out.
  struct Symbol {
    TokenId id;
    uint32_t previous, next;
  };
  struct Candidate {
    uint32_t rank, position;
    TokenId left, right, merged;
    bool operator<(const Candidate& other) const {  // the heap gives the largest first
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  constexpr uint32_t kNone = UINT32_MAX;
  const size_t count = ids.size() - start;
  std::vector<Symbol> symbols(count);
  for (size_t i = 0; i < count; ++i)
    symbols[i] = {ids[start + i], i == 0 ? kNone : static_cast<uint32_t>(i - 1),
                  i + 1 == count ? kNone : static_cast<uint32_t>(i + 1)};
  std::vector<Candidate> initial;
  const auto candidate = [&](uint32_t position, auto&& take) {
    if (position == kNone || symbols[position].next == kNone) return;
    const TokenId left = symbols[position].id, right = symbols[symbols[position].next].id;
    const Merge merge = find(left, right);
    if (merge.merged >= 0) take(Candidate{merge.rank, position, left, right, merge.merged});
  };
  for (uint32_t i = 0; i < count; ++i) candidate(i, [&](const Candidate& c) { initial.push_back(c); });
  std::priority_queue<Candidate> heap(std::less<Candidate>(), std::move(initial));
  const auto push = [&](const Candidate& c) { heap.push(c); };
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    Symbol& left = symbols[top.position];
    if (left.id != top.left || left.next == kNone || symbols[left.next].id != top.right) continue;
    const uint32_t right = left.next;
    left.id = top.merged;
    left.next = symbols[right].next;
    if (left.next != kNone) symbols[left.next].previous = top.position;
    symbols[right].id = -1;  // gone: no candidate matches it
    candidate(left.previous, push);
    candidate(top.position, push);
  }
  ids.resize(start);
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace octavo
