// The register tile of the quantised formats: H halves (8 rows each) of a tile times T tokens.
//
// Per block of 32 a format's policy W gives integer dot products, a scale per row and kSums offsets per row:
//   acc[t][row] += dot * (scale[row] * scale_x[t]) + offset[0][row] * sum_x[t][0] + offset[1][row] * sum_x[t][1]
//
// W(tile, k, half) is a cursor at the tile's first block, at rows 8 * half and up. It has
//   kSums, kBlocks          offsets per block; blocks of 32 per step (8 where they share a super-block's scales)
//   begin<H>()              loads what the blocks of a step share
//   block<T, H>(b, x, ldx, dots, scale, offset)
//   advance()               to the next step
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>

#include "../packed_layout.h"
#include "../token_tiles.h"
#include "../unroll.h"

namespace kbench {
namespace {

inline __m256i broadcast_quad(const int8_t* x) {
  int32_t quad;
  std::memcpy(&quad, x, sizeof quad);
  return _mm256_set1_epi32(quad);
}

inline __m256i load_rows(const uint8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }

inline __m256 load_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}

inline __m256 load_u8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

// Makes a sum final at this point. Integer additions are plain `+` to the compiler: left alone it adds up at the end of
// an unrolled loop, wants all products at once for that, and spills most of them.
inline void settle(__m256i& sum) { __asm__("" : "+x"(sum)); }

template <class W, int T, int H>
inline void multiply_rows(const uint8_t* tile, const Activation& a, int64_t token, int half, float (*out)[kTileRows]) {
  const int64_t blocks = a.k / kBlock;
  const int8_t* x = a.q + token * a.k;
  const float* scale_x = a.scale + token * blocks;
  const float* sum_x = a.sum + token * blocks * 2;
  W w(tile, a.k, half);
  __m256 acc[T][H];
  KBENCH_UNROLL
  for (int t = 0; t < T; ++t) {
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) acc[t][h] = _mm256_setzero_ps();
  }
  for (int64_t step = 0; step < blocks; step += W::kBlocks) {
    w.template begin<H>();
    for (int b = 0; b < W::kBlocks; ++b) {
      __m256i dots[T][H];
      __m256 scale[H], offset[H][2];
      w.template block<T, H>(b, x, a.k, dots, scale, offset);
      KBENCH_UNROLL
      for (int t = 0; t < T; ++t) {
        const __m256 sx = _mm256_broadcast_ss(scale_x + t * blocks);
        KBENCH_UNROLL
        for (int h = 0; h < H; ++h) {
          acc[t][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[t][h]), _mm256_mul_ps(scale[h], sx), acc[t][h]);
        }
        KBENCH_UNROLL
        for (int s = 0; s < W::kSums; ++s) {
          const __m256 sum = _mm256_broadcast_ss(sum_x + t * blocks * 2 + s);
          KBENCH_UNROLL
          for (int h = 0; h < H; ++h) acc[t][h] = _mm256_fmadd_ps(offset[h][s], sum, acc[t][h]);
        }
      }
      x += kBlock;
      scale_x += 1;
      sum_x += 2;
    }
    w.advance();
  }
  KBENCH_UNROLL
  for (int t = 0; t < T; ++t) {
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) _mm256_store_ps(out[t] + 8 * (half + h), acc[t][h]);
  }
}

// Few tokens take both halves of the tile in one pass, in the order of memory; more tokens take one half at a time, so
// that accumulators and weights stay within the 16 registers.
template <class W>
struct BlockKernel {
  static constexpr int kMaxTokens = W::kMaxTokens;
  static constexpr int64_t kActivationBytes = sizeof(int8_t);
  template <int T>
  static inline void run(const uint8_t* tile, const Activation& a, int64_t token, float (*out)[kTileRows]) {
    if constexpr (T <= W::kWideTokens) {
      multiply_rows<W, T, 2>(tile, a, token, 0, out);
    } else {
      multiply_rows<W, T, 1>(tile, a, token, 0, out);
      multiply_rows<W, T, 1>(tile, a, token, 1, out);
    }
  }
};

}  // namespace
}  // namespace kbench
#endif
