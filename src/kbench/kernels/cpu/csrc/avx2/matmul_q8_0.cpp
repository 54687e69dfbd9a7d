// Q8_0: signed bytes. See packed_layout.h.
#include "matmul_kernels.h"

#if defined(__x86_64__)
#include "block_kernel.h"

namespace kbench {
namespace {

struct Q8_0 {
  static constexpr int kMaxTokens = 4;  // 4 x 16 rows: 8 % faster than 4 x 8 or 6 x 8, 5 x 16 spills
  static constexpr int kWideTokens = kMaxTokens;
  static constexpr int kSums = 0;
  static constexpr int kBlocks = 1;
  const uint8_t* quants;
  const uint8_t* d;

  Q8_0(const uint8_t* tile, int64_t k, int half)
      : quants(tile + half * 32), d(tile + k / kBlock * kByteBlockBytes + half * 16) {}
  template <int H>
  void begin() {}
  // maddubs wants one unsigned factor: |w| times x with the sign of w. 2 * 128 * 127 fits int16, two of them do not,
  // so each product is widened at once.
  template <int T, int H>
  void block(int, const int8_t* x, int64_t ldx, __m256i (*dots)[H], __m256* scale, __m256 (*)[2]) const {
    prefetch_ahead(d);
    const __m256i ones = _mm256_set1_epi16(1);
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) scale[h] = load_halves(d + h * 16);
    KBENCH_UNROLL
    for (int l = 0; l < 8; ++l) {
      prefetch_ahead(quants + l * kLineBytes);
      __m256i w[H], magnitude[H];
      KBENCH_UNROLL
      for (int h = 0; h < H; ++h) {
        w[h] = load_rows(quants + l * kLineBytes + h * 32);
        magnitude[h] = _mm256_abs_epi8(w[h]);
      }
      KBENCH_UNROLL
      for (int t = 0; t < T; ++t) {
        const __m256i quad = broadcast_quad(x + t * ldx + 4 * l);
        KBENCH_UNROLL
        for (int h = 0; h < H; ++h) {
          const __m256i product =
              _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude[h], _mm256_sign_epi8(quad, w[h])), ones);
          dots[t][h] = l == 0 ? product : _mm256_add_epi32(dots[t][h], product);
          settle(dots[t][h]);
        }
      }
    }
  }
  void advance() {
    quants += kByteBlockBytes;
    d += kHalvesBytes;
  }
};

}  // namespace

namespace avx2 {
KBENCH_MATMUL(matmul_q8_0) { multiply_tiles<BlockKernel<Q8_0>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
}  // namespace avx2
}  // namespace kbench
#endif
