// Step 10's arithmetic, which steps 11 and 12 use unchanged.
#pragma once
#include "../ladder.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace kbench::ladder {
namespace {

// 32 products of signed bytes in 8 sums.
//
//   maddubs   products of an unsigned and a signed byte, neighbours added: 16 sums of 16 bits
//   madd      neighbours added once more: 8 sums of 32 bits
//
// The first factor must be unsigned, so the weight's sign moves to the activation: |w| * (sign(w) * x) is w * x. Two
// products are at most 2 * 128 * 127 = 32512, which 16 bits just hold.
inline __m256 block_products(__m256i w, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

inline float add_lanes(__m256 v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

inline __m256i load_anywhere(const int8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline __m256i load_aligned(const int8_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }

}  // namespace
}  // namespace kbench::ladder
#endif
