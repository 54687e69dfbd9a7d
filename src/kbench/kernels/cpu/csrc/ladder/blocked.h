// Step 4's loops over the rows [begin, end): a header because the parallel steps run them too, on their share of rows.
#pragma once
#include <algorithm>

#include "ladder.h"
#include "several_sums.h"

namespace kbench::ladder {

// 8 rows x 2048 columns of floats are 64 KiB: a part of any L2 cache, where the matching 8 KiB of each token lie as
// well. Long rows, because the end of each inner product, adding up its 16 sums, is paid once per block and token.
constexpr int64_t kBlockRows = 8;
constexpr int64_t kBlockColumns = 2048;

static inline void blocked_rows(const Linear& call, const float* w, int64_t begin, int64_t end) {
  for (int64_t t = 0; t < call.tokens; ++t) std::fill(call.y + t * call.n + begin, call.y + t * call.n + end, 0.0f);
  for (int64_t row0 = begin; row0 < end; row0 += kBlockRows) {
    const int64_t row1 = std::min(row0 + kBlockRows, end);
    for (int64_t i0 = 0; i0 < call.k; i0 += kBlockColumns) {
      const int64_t columns = std::min(kBlockColumns, call.k - i0);
      for (int64_t t = 0; t < call.tokens; ++t) {  // every token while the block is at hand
        for (int64_t row = row0; row < row1; ++row) {
          call.y[t * call.n + row] += dot(w + row * call.k + i0, call.x + t * call.k + i0, columns);
        }
      }
    }
  }
}

}  // namespace kbench::ladder
