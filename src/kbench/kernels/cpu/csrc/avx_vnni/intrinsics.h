// The AVX-VNNI intrinsics: the compiler's own, or, with KBENCH_SIMDE, what they compute in AVX2, so that the sources of
// this folder can be tested on a CPU without them.
#pragma once
#include <immintrin.h>

#if defined(KBENCH_SIMDE)
namespace kbench {
namespace {

// Sums of four unsigned times signed bytes: pairs of int16 products, then pairs of those, put back into order.
inline __m256i emulated_dpbusd(__m256i sum, __m256i w, __m256i x) {
  const __m256i low = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(w)),
                                        _mm256_cvtepi8_epi16(_mm256_castsi256_si128(x)));
  const __m256i high = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm256_extracti128_si256(w, 1)),
                                         _mm256_cvtepi8_epi16(_mm256_extracti128_si256(x, 1)));
  return _mm256_add_epi32(sum, _mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xd8));
}

inline __m256i emulated_dpwssd(__m256i sum, __m256i w, __m256i x) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(w, x));
}

}  // namespace
}  // namespace kbench
#define _mm256_dpbusd_avx_epi32 ::kbench::emulated_dpbusd
#define _mm256_dpwssd_avx_epi32 ::kbench::emulated_dpwssd
#endif
