// Step 7's loops, with the conversion of scales left open: step 8 changes nothing else.
#pragma once
#include <algorithm>

#include "ladder.h"
#include "several_sums.h"

namespace kbench::ladder {

// Weights dequantised at a time: 4 KiB of floats, which never leave the L1 cache.
constexpr int64_t kSlice = 1024;
static_assert(kSlice % kBlock == 0, "a slice is whole blocks");

template <class ToFloat>
static inline void fused_rows(const Linear& call, int64_t begin, int64_t end, const ToFloat& to_float) {
  const int64_t blocks_per_row = call.k / kBlock;
  float slice[kSlice];
  for (int64_t row = begin; row < end; ++row) {
    const BlockQ8_0* blocks = static_cast<const BlockQ8_0*>(call.w) + row * blocks_per_row;
    for (int64_t t = 0; t < call.tokens; ++t) call.y[t * call.n + row] = 0.0f;
    for (int64_t i0 = 0; i0 < call.k; i0 += kSlice) {
      const int64_t columns = std::min(kSlice, call.k - i0);
      for (int64_t b = 0; b < columns / kBlock; ++b) {
        const BlockQ8_0& block = blocks[i0 / kBlock + b];
        const float scale = to_float(block.scale);
        for (int64_t i = 0; i < kBlock; ++i) slice[b * kBlock + i] = scale * block.q[i];
      }
      for (int64_t t = 0; t < call.tokens; ++t) {
        call.y[t * call.n + row] += dot(slice, call.x + t * call.k + i0, columns);
      }
    }
  }
}

}  // namespace kbench::ladder
