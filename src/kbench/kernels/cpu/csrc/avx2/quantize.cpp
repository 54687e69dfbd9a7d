// Activations to int8, the same bits as scalar/quantize.cpp.
#include "matmul_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "../packed_layout.h"
#include "../quantized_range.h"

namespace kbench {
namespace {

inline uint32_t largest_lane(__m256i v) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

inline int sum_lanes(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

// v becomes what rounding took.
inline void quantize_block(__m256 v[4], int8_t* q, float* scale, float* sum) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    largest = _mm256_max_epu32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
  }
  const uint32_t bits = largest_lane(largest);
  if (bits < kSmallestBits || bits >= kInfinityBits) {
    const uint32_t value = bits < kSmallestBits ? 0 : kNanBits;
    std::memset(q, 0, kBlock);
    std::memcpy(scale, &value, sizeof value);
    std::memcpy(sum, &value, sizeof value);
    std::memcpy(sum + 1, &value, sizeof value);
    return;
  }
  float absmax;
  std::memcpy(&absmax, &bits, sizeof absmax);
  const __m256 inverse = _mm256_set1_ps(127.0f / absmax);
  __m256i n[4];
  for (int i = 0; i < 4; ++i) n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));  // nearest, ties to even
  const int first = sum_lanes(_mm256_add_epi32(n[0], n[1]));
  const int second = sum_lanes(_mm256_add_epi32(n[2], n[3]));
  // Packing works within 128-bit lanes; the permutation puts the dwords back into order.
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(packed, order));
  *scale = absmax / 127.0f;
  for (int i = 0; i < 4; ++i) v[i] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(n[i]), _mm256_set1_ps(*scale), v[i]);
  sum[0] = *scale * static_cast<float>(first + second);
  sum[1] = *scale * static_cast<float>(first);
}

}  // namespace

namespace avx2 {

void quantize(const Activation& a, int64_t token_begin, int64_t token_end) {
  const int64_t blocks = (a.ldq == 0 ? a.k : a.ldq) / kBlock;
  for (int64_t t = token_begin; t < token_end; ++t) {
    for (int64_t block = 0; block < a.k / kBlock; ++block) {
      __m256 v[4];
      for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(a.x + t * a.ldx + block * kBlock + 8 * i);
      for (int plane = 0; plane < a.planes; ++plane) {
        const int64_t at = (t * a.planes + plane) * blocks + block;
        quantize_block(v, a.q + at * kBlock, a.scale + at, a.sum + 2 * at);
      }
    }
  }
}

}  // namespace avx2
}  // namespace kbench
#endif
