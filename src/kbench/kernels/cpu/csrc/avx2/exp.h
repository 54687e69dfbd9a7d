// exp() of eight floats.
#pragma once
#include <immintrin.h>

namespace kbench {

// exp(x) = 2^n p(r) with x = n ln 2 + r, |r| <= ln 2 / 2 (ln 2 in two parts, so that r is exact to float), p the Taylor
// polynomial of degree 7: what it leaves out, |r|^8 / 8! = 5e-9, lies under float's half unit (6e-8), so that the
// roundings of its last steps remain: 1.5 units, 1.8e-7 relative.
static inline __m256 exp_mantissa(__m256 x, __m256i* n) {
  const __m256 whole =
      _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(whole, _mm256_set1_ps(0.693145752f), x);
  r = _mm256_fnmadd_ps(whole, _mm256_set1_ps(1.42860677e-6f), r);
  // Powers paired (Estrin): half the latency of one multiply-add after the other.
  const __m256 r2 = _mm256_mul_ps(r, r);
  const __m256 p01 = _mm256_add_ps(r, _mm256_set1_ps(1.0f));
  const __m256 p23 = _mm256_fmadd_ps(r, _mm256_set1_ps(1.0f / 6), _mm256_set1_ps(0.5f));
  const __m256 p45 = _mm256_fmadd_ps(r, _mm256_set1_ps(1.0f / 120), _mm256_set1_ps(1.0f / 24));
  const __m256 p67 = _mm256_fmadd_ps(r, _mm256_set1_ps(1.0f / 5040), _mm256_set1_ps(1.0f / 720));
  __m256 p = _mm256_fmadd_ps(p67, r2, p45);
  p = _mm256_fmadd_ps(p, r2, p23);
  *n = _mm256_cvtps_epi32(whole);
  return _mm256_fmadd_ps(p, r2, p01);
}

// 0 below -87.3 (the smallest normal float), inf above 88.7.
static inline __m256 exp_ps(__m256 x) {
  __m256i n;
  const __m256 p = exp_mantissa(x, &n);
  // 2^n in two factors: n = 128 alone would not fit an exponent.
  const __m256i first = _mm256_srai_epi32(n, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
  const __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, first), bias), 23));
  __m256 y = _mm256_mul_ps(_mm256_mul_ps(p, a), b);
  y = _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-87.33654f), _CMP_LT_OQ), y);
  return _mm256_blendv_ps(y, _mm256_set1_ps(__builtin_inff()), _mm256_cmp_ps(x, _mm256_set1_ps(88.72283f), _CMP_GT_OQ));
}

// For x <= 0, softmax's case, with fewer steps; NaN gives NaN. At -88 n is -127, whose exponent field is 0: a clean
// zero for all below.
static inline __m256 exp_not_positive_ps(__m256 x) {
  __m256i n;
  const __m256 p = exp_mantissa(_mm256_max_ps(_mm256_set1_ps(-88.0f), x), &n);
  return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23)));
}

}  // namespace kbench
