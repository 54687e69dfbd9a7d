// Step 12, prefetched: while a block is multiplied, ask for the line that will be needed some blocks later. The
// hardware does the same by itself for data read in order, so this pays only where it does not look far enough ahead:
// it stops at the end of a 4 KiB page, and starts anew on the next.
#include "block.h"

#if defined(__x86_64__)
namespace kbench::ladder {
namespace {

// Memory answers after about 100 ns; in that time a core that gets 10 to 20 GB/s eats 1 to 2 KiB.
constexpr int64_t kAheadBytes = 2048;

}  // namespace

void rows_prefetched(const Linear& call, const Int8Rows& x, int64_t begin, int64_t end) {
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
        // Beyond the matrix too, at its end: a prefetch of an address that does not exist does nothing.
        _mm_prefetch(reinterpret_cast<const char*>(w + b * kBlock) + kAheadBytes, _MM_HINT_T0);
        const __m256 scales = _mm256_set1_ps(_cvtsh_ss(scale_w[b]) * scale[b]);
        sum = _mm256_fmadd_ps(block_products(load_aligned(w + b * kBlock), load_anywhere(q + b * kBlock)), scales, sum);
      }
      call.y[t * call.n + row] = add_lanes(sum);
    }
  }
}

}  // namespace kbench::ladder
#endif
