// The register tile of the quantised formats: the 16 rows of a tile, one ZMM register, times T tokens.
//
// Per block of 32 a format's policy W gives, per token and row, its dot product times its scale, and kSums offsets per
// row:
//   acc[t][row] += product[t][row] * scale_x[t] + offset[0][row] * sum_x[t][0] + offset[1][row] * sum_x[t][1]
//
// W(tile, k) is a cursor at the tile's first block. It has
//   kSums, kBlocks          offsets per block; blocks of 32 per step (8 where they share a super-block's scales)
//   begin()                 loads what the blocks of a step share
//   block<T>(b, x, ldx, product, offset)
//   advance()               to the next step
#pragma once
#if defined(__x86_64__)
#include "intrinsics.h"

#include "../packed_layout.h"
#include "../token_tiles.h"
#include "../unroll.h"

namespace kbench {
namespace {

inline __m512i load_line(const uint8_t* p) { return _mm512_load_si512(p); }

inline __m512 load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}

inline __m512 load_u8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}

inline __m512 load_i8(const uint8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}

// sum + the four products of each row's unsigned weights with the next four activations.
inline __m512i dot_quad(__m512i sum, __m512i weights, const int8_t* x) {
  int32_t quad;
  std::memcpy(&quad, x, sizeof quad);
  return _mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(quad));
}

template <class W>
struct BlockKernel {
  static constexpr int kMaxTokens = W::kMaxTokens;
  static constexpr int64_t kActivationBytes = sizeof(int8_t);

  template <int T>
  static inline void run(const uint8_t* tile, const Activation& a, int64_t token, float (*out)[kTileRows]) {
    const int64_t blocks = a.k / kBlock;
    const int8_t* x = a.q + token * a.k;
    const float* scale_x = a.scale + token * blocks;
    const float* sum_x = a.sum + token * blocks * 2;
    W w(tile, a.k);
    __m512 acc[T];
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) acc[t] = _mm512_setzero_ps();
    for (int64_t step = 0; step < blocks; step += W::kBlocks) {
      w.begin();
      for (int b = 0; b < W::kBlocks; ++b) {
        __m512 product[T], offset[2];
        w.template block<T>(b, x, a.k, product, offset);
        KBENCH_UNROLL
        for (int t = 0; t < T; ++t) {
          acc[t] = _mm512_fmadd_ps(product[t], _mm512_set1_ps(scale_x[t * blocks]), acc[t]);
          KBENCH_UNROLL
          for (int s = 0; s < W::kSums; ++s) {
            acc[t] = _mm512_fmadd_ps(offset[s], _mm512_set1_ps(sum_x[t * blocks * 2 + s]), acc[t]);
          }
        }
        x += kBlock;
        scale_x += 1;
        sum_x += 2;
      }
      w.advance();
    }
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) _mm512_store_ps(out[t], acc[t]);
  }
};

}  // namespace
}  // namespace kbench
#endif
