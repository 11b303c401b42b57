// Work on slabs of rows that can fail: all threads, and of several errors the one that comes first in the rows.
#pragma once

#include <cstdint>

#include "base/function_ref.h"
#include "base/result.h"
#include "parallel/thread_pool.h"

namespace octavo {

// body(begin, end) for each slab of `slab_rows` rows of `rows`, handed out one by one. After an error no slab behind it
// is begun.
Result<void> over_slabs(ThreadPool& pool, int64_t rows, int64_t slab_rows,
                        FunctionRef<Result<void>(int64_t begin, int64_t end)> body);

}  // namespace octavo
