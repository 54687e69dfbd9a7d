// Rows as a cache stores them, eight floats at a time.
#include <immintrin.h>

#include "op_table.h"

namespace kbench {
namespace {

uint16_t half_of(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

void to_f16(const float* x, int64_t n, uint8_t* y) {
  auto* out = reinterpret_cast<uint16_t*>(y);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), h);
  }
  for (; i < n; ++i) out[i] = half_of(x[i]);
}

// bfloat16 in the low half of each of eight dwords: half a unit and the last kept bit added (to nearest, ties to even),
// the rest cut off. A NaN would lose its last bits, or run over into infinity: it gets the quiet bit instead.
__m256i bfloat16_of(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), _mm256_or_si256(high, _mm256_set1_epi32(64)), nan);
}

void to_bf16(const float* x, int64_t n, uint8_t* y) {
  auto* out = reinterpret_cast<uint16_t*>(y);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i b = bfloat16_of(_mm256_loadu_ps(x + i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm_packus_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1)));
  }
  for (; i < n; ++i) {
    const __m128i b = _mm256_castsi256_si128(bfloat16_of(_mm256_set1_ps(x[i])));
    out[i] = static_cast<uint16_t>(_mm_extract_epi16(b, 0));
  }
}

// To the nearest integer, halves away from zero: cut off after adding the largest float below a half, which carries
// exactly the halves and what is above them over.
__m256i to_nearest(__m256 x) {
  const __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
  return _mm256_cvttps_epi32(_mm256_add_ps(x, _mm256_or_ps(sign, _mm256_set1_ps(0.49999997f))));
}

void to_q8_0(const float* x, int64_t n, uint8_t* y) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  for (; n > 0; n -= kCacheBlock, x += kCacheBlock, y += kCacheBlockBytes) {
    __m256 v[4], largest = _mm256_setzero_ps(), nan = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + 8 * i);
      largest = _mm256_max_ps(_mm256_and_ps(v[i], magnitude), largest);
      nan = _mm256_or_ps(nan, _mm256_cmp_ps(v[i], v[i], _CMP_UNORD_Q));
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    // max leaves a NaN out: it must not hide behind 31 good numbers.
    const float scale = _mm256_movemask_ps(nan) != 0 ? __builtin_nanf("") : _mm_cvtss_f32(m) / 127.0f;
    const __m256 inverse = _mm256_set1_ps(scale == 0 ? 0 : 1.0f / scale);
    const uint16_t stored = half_of(scale);
    __builtin_memcpy(y, &stored, sizeof stored);
    __m256i q[4];
    for (int i = 0; i < 4; ++i) q[i] = to_nearest(_mm256_mul_ps(v[i], inverse));
    // Packing works within halves of a register: dwords come out as 0 2 4 6 | 1 3 5 7 of the eight quads.
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + 2), _mm256_permutevar8x32_epi32(bytes, order));
  }
}

}  // namespace

void fill_op_table_avx2_cache(OpTable& table) {
  table.to_cache[static_cast<int>(CacheType::f16)] = to_f16;
  table.to_cache[static_cast<int>(CacheType::bf16)] = to_bf16;
  table.to_cache[static_cast<int>(CacheType::q8_0)] = to_q8_0;
}

}  // namespace kbench
