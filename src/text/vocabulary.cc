#include "text/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "text/hash_tables.h"

namespace octavo {

uint64_t process_hash_seed() {
  static const uint64_t seed = [] {
    std::random_device device;
    return static_cast<uint64_t>(device()) << 32 | device();
  }();
  return seed;
}

std::string_view TextArena::add(std::string_view text) {
  constexpr size_t kBlock = size_t{256} << 10;
  if (text.size() > left_ || next_ == nullptr) {
    left_ = std::max(kBlock, text.size());
    blocks_.push_back(std::make_unique_for_overwrite<char[]>(left_));
    next_ = blocks_.back().get();
  }
  char* copy = next_;
  std::copy(text.begin(), text.end(), copy);
  next_ += text.size();
  left_ -= text.size();
  return {copy, text.size()};
}

Vocabulary::Vocabulary(size_t id_limit) : id_limit_(id_limit), seed_(process_hash_seed()) {
  rehash(16);
}

void Vocabulary::reserve(size_t pieces) {
  pieces_.reserve(pieces);
  size_t capacity = slots_.size();
  while (capacity < pieces * 2) capacity *= 2;
  if (capacity > slots_.size()) rehash(capacity);
}

Result<void> Vocabulary::check_id(int64_t id, std::string_view piece) const {
  if (id < 0 || static_cast<uint64_t>(id) >= id_limit_)
    return fail({.what = "token id is out of range",
                 .where = fmt::format("token \"{}\"", piece),
                 .found = fmt::format("{}", id),
                 .expected = fmt::format("0 to {} (from the size of the file)", id_limit_ - 1)});
  return {};
}

Result<void> Vocabulary::add(int64_t id, std::string_view piece) {
  OCTAVO_TRY(check_id(id, piece));
  if (contains(static_cast<TokenId>(id)))
    return fail({.what = "two tokens have the same id",
                 .where = fmt::format("id {}", id),
                 .found = fmt::format("\"{}\" and \"{}\"", pieces_[static_cast<size_t>(id)], piece)});
  if ((count_ + 1) * 2 > slots_.size()) rehash(slots_.size() * 2);
  const auto hash = static_cast<uint32_t>(hash_bytes(piece, seed_));
  Slot& slot = slots_[position(piece, hash)];
  if (slot.id >= 0)
    return fail({.what = "vocabulary names a token twice",
                 .where = fmt::format("token \"{}\"", piece),
                 .found = fmt::format("ids {} and {}", slot.id, id)});
  slot = {hash, static_cast<TokenId>(id)};
  ++count_;
  store(static_cast<TokenId>(id), piece);
  return {};
}

Result<void> Vocabulary::name(int64_t id, std::string_view piece) {
  OCTAVO_TRY(check_id(id, piece));
  if (!contains(static_cast<TokenId>(id))) {
    store(static_cast<TokenId>(id), piece);
  } else if (pieces_[static_cast<size_t>(id)] != piece) {
    return fail({.what = "two tokens have the same id",
                 .where = fmt::format("id {}", id),
                 .found = fmt::format("\"{}\" and \"{}\"", pieces_[static_cast<size_t>(id)], piece)});
  }
  return {};
}

void Vocabulary::store(TokenId id, std::string_view piece) {
  const auto index = static_cast<size_t>(id);
  if (index >= pieces_.size()) pieces_.resize(index + 1);
  pieces_[index] = arena_.add(piece);
}

std::optional<TokenId> Vocabulary::find(std::string_view piece) const {
  const Slot& slot = slots_[position(piece, static_cast<uint32_t>(hash_bytes(piece, seed_)))];
  if (slot.id < 0) return std::nullopt;
  return slot.id;
}

std::string_view Vocabulary::piece(TokenId id) const {
  return contains(id) ? pieces_[static_cast<size_t>(id)] : std::string_view();
}

bool Vocabulary::contains(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < pieces_.size() && pieces_[static_cast<size_t>(id)].data() != nullptr;
}

void Vocabulary::rehash(size_t capacity) {
  std::vector<Slot> old(capacity);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    size_t i = slot.hash & (slots_.size() - 1);
    while (slots_[i].id >= 0) i = (i + 1) & (slots_.size() - 1);
    slots_[i] = slot;
  }
}

size_t Vocabulary::position(std::string_view piece, uint32_t hash) const {
  size_t i = hash & (slots_.size() - 1);
  while (slots_[i].id >= 0 && (slots_[i].hash != hash || pieces_[static_cast<size_t>(slots_[i].id)] != piece))
    i = (i + 1) & (slots_.size() - 1);
  return i;
}

}  // namespace octavo
