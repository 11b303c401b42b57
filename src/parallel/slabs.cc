#include "parallel/slabs.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

namespace octavo {

Result<void> over_slabs(ThreadPool& pool, int64_t rows, int64_t slab_rows,
                        FunctionRef<Result<void>(int64_t begin, int64_t end)> body) {
  const int64_t slabs = (rows + slab_rows - 1) / slab_rows;
  std::optional<Error> first;
  int64_t first_slab = slabs;
  std::mutex mutex;
  pool.parallel_items(slabs, [&](int64_t slab, int) {
    {
      const std::lock_guard lock(mutex);
      if (first_slab < slab) return;
    }
    Result<void> result = body(slab * slab_rows, std::min(rows, (slab + 1) * slab_rows));
    if (result) return;
    const std::lock_guard lock(mutex);
    if (slab >= first_slab) return;
    first_slab = slab;
    first = std::move(result).error();
  });
  if (first) return fail(std::move(*first));
  return {};
}

}  // namespace octavo
