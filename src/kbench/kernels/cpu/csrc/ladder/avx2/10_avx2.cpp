// Step 10, AVX2: step 9's block in the instructions that the compiler does not find by itself. One register holds the
// 32 bytes of a block, and two instructions multiply and add them: see block.h. F16C converts a scale in one more.
#include "block.h"

#if defined(__x86_64__)
namespace kbench::ladder {

void rows_avx2(const Linear& call, const Int8Rows& x, int64_t begin, int64_t end) {
  const int64_t blocks_per_row = call.k / kBlock;
  for (int64_t row = begin; row < end; ++row) {
    const BlockQ8_0* w = static_cast<const BlockQ8_0*>(call.w) + row * blocks_per_row;
    for (int64_t t = 0; t < call.tokens; ++t) {
      const int8_t* q = x.q + t * call.k;
      const float* scale = x.scale + t * blocks_per_row;
      __m256 sum = _mm256_setzero_ps();
      for (int64_t b = 0; b < blocks_per_row; ++b) {
        const __m256 scales = _mm256_set1_ps(_cvtsh_ss(w[b].scale) * scale[b]);
        sum = _mm256_fmadd_ps(block_products(load_anywhere(w[b].q), load_anywhere(q + b * kBlock)), scales, sum);
      }
      call.y[t * call.n + row] = add_lanes(sum);
    }
  }
}

}  // namespace kbench::ladder
#endif
