// PrefixCache: who holds which page of a PagePool, and which full pages can serve a later request with the same prefix.
//
// A page is free (in the pool), held (by one or more tables), or cached (held by nobody, its tokens known; the least
// recently used one is given up when the pool runs dry). free + held + cached = all, always.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv_cache/page_pool.h"

namespace octavo {

// The pages of one request, in order of position.
struct PageTable {
  std::vector<int32_t> pages;
  int64_t num_shared = 0;    // pages at the front that are entries of the cache
  bool chain_ended = false;  // a hash collision: later pages of this request cannot be entries
};

// Key of a page from the key of the page before it (that of the salt for the first) and its tokens.
using PrefixHash = uint64_t (*)(uint64_t parent, std::span<const int32_t> tokens);
uint64_t prefix_hash(uint64_t parent, std::span<const int32_t> tokens);

class PrefixCache {
 public:
  // Disabled, it only counts and hands out pages. The pool must outlive it and have no other user.
  explicit PrefixCache(PagePool& pool, bool enabled = true, PrefixHash hash = prefix_hash);

  // Appends the cached pages that continue `table`, as long as they hold exactly tokens[32 i, 32 i + 32) under this
  // salt and lie within the first `limit` tokens. `table` holds full shared pages only. Returns the pages appended.
  int64_t match(std::span<const int32_t> tokens, int64_t limit, std::string_view salt, PageTable& table);
  // Grows the table to `num_pages` pages, giving up cached ones where needed. False and no change when there are not
  // enough.
  bool grow(int64_t num_pages, PageTable& table);
  // The first `computed` of `tokens` are in the table's pages: full pages become entries. Where an equal entry exists
  // already the table takes that page and frees its own: equal tokens have equal bits.
  void publish(std::span<const int32_t> tokens, int64_t computed, std::string_view salt, PageTable& table);
  // Gives all pages back; entries stay cached. The table is empty afterwards.
  void release(PageTable& table);

  int64_t num_pages() const { return pool_->num_pages(); }
  int64_t num_free() const { return pool_->num_free(); }
  int64_t num_cached() const { return num_cached_; }
  int64_t num_held() const { return num_held_; }
  int64_t num_available() const { return num_free() + num_cached(); }  // what grow() can give
  uint64_t num_evicted() const { return num_evicted_; }

 private:
  struct Page {
    int32_t references = 0;
    bool entry = false;
    uint64_t key = 0;
    int32_t parent = -1;             // the entry before it; -1: first page of a text
    int32_t children = 0;            // entries whose parent this is
    int32_t newer = -1, older = -1;  // in the list of cached pages
    std::string salt;                // of a first page
    std::vector<int32_t> tokens;
  };
  Page& page(int32_t id) { return pages_[static_cast<size_t>(id)]; }
  // The entry with this key if its tokens, parent and salt are these; -1: no entry; -2: another one has the key.
  int32_t find(uint64_t key, int32_t parent, std::span<const int32_t> tokens, std::string_view salt);
  uint64_t next_key(const PageTable& table, std::span<const int32_t> tokens, std::string_view salt);
  void hold(int32_t id);
  void drop(int32_t id);
  void link(int32_t id);
  void unlink(int32_t id);
  void evict_oldest();

  PagePool* pool_;
  bool enabled_;
  PrefixHash hash_;
  std::vector<Page> pages_;
  std::unordered_map<uint64_t, int32_t> entries_;
  int32_t newest_ = -1, oldest_ = -1;
  int64_t num_cached_ = 0, num_held_ = 0;
  uint64_t num_evicted_ = 0;
};

}  // namespace octavo
