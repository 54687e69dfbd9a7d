// Step 11, aligned: a block of 34 bytes starts anywhere, so nearly half of its 32-byte loads straddle two cache lines
// and cost two accesses. Sorted into two streams before the clock runs (align.cpp), quants never straddle a line:
//
//   GGUF      s q q q ... q | s q q q ... q | ...       34 bytes a block
//   aligned   q q q ... q q q q ... q q q q ...         [n][k] int8, on a 64-byte boundary
//             s s s ...                                 [n][k / 32] float16, behind them
//
// The product's kernels go further, 16 rows side by side. The price of either is a pass over the file at start-up.
#include "block.h"

#if defined(__x86_64__)
namespace kbench::ladder {

void rows_aligned(const Linear& call, const Int8Rows& x, int64_t begin, int64_t end) {
  const int64_t blocks_per_row = call.k / kBlock;
  const int8_t* all_quants = static_cast<const int8_t*>(call.w);
  const uint16_t* all_scales = reinterpret_cast<const uint16_t*>(all_quants + call.n * call.k);
  for (int64_t row = begin; row < end; ++row) {
    const int8_t* w = all_quants + row * call.k;
    const uint16_t* scale_w = all_scales + row * blocks_per_row;
    for (int64_t t = 0; t < call.tokens; ++t) {
      const int8_t* q = x.q + t * call.k;
      const float* scale = x.scale + t * blocks_per_row;
      __m256 sum = _mm256_setzero_ps();
      for (int64_t b = 0; b < blocks_per_row; ++b) {
        const __m256 scales = _mm256_set1_ps(_cvtsh_ss(scale_w[b]) * scale[b]);
        sum = _mm256_fmadd_ps(block_products(load_aligned(w + b * kBlock), load_anywhere(q + b * kBlock)), scales, sum);
      }
      call.y[t * call.n + row] = add_lanes(sum);
    }
  }
}

}  // namespace kbench::ladder
#endif
