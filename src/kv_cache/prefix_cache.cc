#include "kv_cache/prefix_cache.h"

#include <xxhash.h>

#include <algorithm>

#include "base/check.h"

namespace octavo {
namespace {
constexpr int32_t kNone = -1, kTaken = -2;
}

uint64_t prefix_hash(uint64_t parent, std::span<const int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent);
}

PrefixCache::PrefixCache(PagePool& pool, bool enabled, PrefixHash hash)
    : pool_(&pool), enabled_(enabled), hash_(hash), pages_(static_cast<size_t>(pool.num_pages())) {
  OCTAVO_CHECK(pool.num_free() == pool.num_pages(), "{} of {} pages free", pool.num_free(), pool.num_pages());
}

int32_t PrefixCache::find(uint64_t key, int32_t parent, std::span<const int32_t> tokens, std::string_view salt) {
  const auto place = entries_.find(key);
  if (place == entries_.end()) return kNone;
  const Page& found = page(place->second);
  // The parent is an entry that was itself compared, so this compares the whole prefix.
  const bool same = found.parent == parent && (parent != kNone || found.salt == salt) &&
                    std::equal(tokens.begin(), tokens.end(), found.tokens.begin(), found.tokens.end());
  return same ? place->second : kTaken;
}

uint64_t PrefixCache::next_key(const PageTable& table, std::span<const int32_t> tokens, std::string_view salt) {
  const uint64_t parent = table.num_shared == 0 ? XXH3_64bits(salt.data(), salt.size())
                                                : page(table.pages[static_cast<size_t>(table.num_shared - 1)]).key;
  return hash_(parent, tokens);
}

int64_t PrefixCache::match(std::span<const int32_t> tokens, int64_t limit, std::string_view salt, PageTable& table) {
  OCTAVO_CHECK(table.num_shared == static_cast<int64_t>(table.pages.size()), "{} shared pages of {}", table.num_shared,
               table.pages.size());
  if (!enabled_ || table.chain_ended) return 0;
  const int64_t full = std::min(limit, static_cast<int64_t>(tokens.size())) / kPageTokens, before = table.num_shared;
  while (table.num_shared < full) {
    const auto part = tokens.subspan(static_cast<size_t>(table.num_shared) * kPageTokens, kPageTokens);
    const int32_t parent = table.pages.empty() ? kNone : table.pages.back();
    const int32_t id = find(next_key(table, part, salt), parent, part, salt);
    if (id < 0) break;
    hold(id);
    table.pages.push_back(id);
    ++table.num_shared;
  }
  return table.num_shared - before;
}

bool PrefixCache::grow(int64_t num_pages, PageTable& table) {
  const int64_t count = num_pages - static_cast<int64_t>(table.pages.size());
  if (count <= 0) return true;
  if (count > num_available()) return false;
  while (num_free() < count) evict_oldest();
  OCTAVO_CHECK(pool_->allocate(count, table.pages), "{} pages of {}", count, num_free());
  num_held_ += count;
  for (size_t i = table.pages.size() - static_cast<size_t>(count); i < table.pages.size(); ++i)
    page(table.pages[i]).references = 1;
  return true;
}

void PrefixCache::publish(std::span<const int32_t> tokens, int64_t computed, std::string_view salt, PageTable& table) {
  if (!enabled_) return;
  while (!table.chain_ended && (table.num_shared + 1) * kPageTokens <= computed) {
    const auto index = static_cast<size_t>(table.num_shared);
    const auto part = tokens.subspan(index * kPageTokens, kPageTokens);
    const uint64_t key = next_key(table, part, salt);
    const int32_t parent = index == 0 ? kNone : table.pages[index - 1];
    const int32_t found = find(key, parent, part, salt), own = table.pages[index];
    if (found == kTaken) {
      table.chain_ended = true;
      return;
    }
    if (found == kNone) {
      Page& entry = page(own);
      entry.entry = true;
      entry.key = key;
      entry.parent = parent;
      entry.salt = parent == kNone ? std::string(salt) : std::string();
      entry.tokens.assign(part.begin(), part.end());
      if (parent != kNone) ++page(parent).children;
      entries_.emplace(key, own);
    } else {
      hold(found);
      drop(own);
      table.pages[index] = found;
    }
    ++table.num_shared;
  }
}

void PrefixCache::release(PageTable& table) {
  // From the end: of two cached pages of one text the later one is given up first.
  for (size_t i = table.pages.size(); i-- > 0;) drop(table.pages[i]);
  table = {};
}

void PrefixCache::hold(int32_t id) {
  Page& held = page(id);
  if (held.references++ > 0) return;
  unlink(id);
  ++num_held_;
}

void PrefixCache::drop(int32_t id) {
  Page& dropped = page(id);
  OCTAVO_CHECK(dropped.references > 0, "page {} is released twice", id);
  if (--dropped.references > 0) return;
  --num_held_;
  if (dropped.entry)
    link(id);
  else
    pool_->release({&id, 1});
}

void PrefixCache::link(int32_t id) {
  Page& added = page(id);
  added.older = newest_;
  added.newer = kNone;
  if (newest_ != kNone) page(newest_).newer = id;
  newest_ = id;
  if (oldest_ == kNone) oldest_ = id;
  ++num_cached_;
}

void PrefixCache::unlink(int32_t id) {
  Page& removed = page(id);
  (removed.newer == kNone ? newest_ : page(removed.newer).older) = removed.older;
  (removed.older == kNone ? oldest_ : page(removed.older).newer) = removed.newer;
  removed.newer = removed.older = kNone;
  --num_cached_;
}

void PrefixCache::evict_oldest() {
  const int32_t id = oldest_;
  OCTAVO_CHECK(id != kNone, "no cached page to give up");
  Page& victim = page(id);
  // A holder of a page holds its parent, and release() runs backwards: no entry outlives its parent.
  OCTAVO_CHECK(victim.children == 0, "page {} has {} continuations", id, victim.children);
  unlink(id);
  entries_.erase(victim.key);
  if (victim.parent != kNone) --page(victim.parent).children;
  victim.entry = false;
  victim.parent = kNone;
  victim.salt.clear();
  ++num_evicted_;
  pool_->release({&id, 1});
}

}  // namespace octavo
