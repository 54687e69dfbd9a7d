// Attention, sixteen floats at a time.
#include "intrinsics.h"

#include "op_table.h"

namespace kbench {
namespace {

struct V {
  using F = __m512;
  static constexpr int kWidth = 16;
  // Two vectors a row: 24 accumulators, two operands and a broadcast of the 32 registers.
  static constexpr int kRowTile = 12;

  static F zero() { return _mm512_setzero_ps(); }
  static F broadcast(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_f16(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_bf16(const uint8_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static F load_i8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static F load_scale(const uint8_t* p) { return broadcast(half(p)); }
  static float half(const uint8_t* p) {
    uint16_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return _cvtsh_ss(bits);
  }
  static F held(F x) { return x; }  // broadcasts are a part of an instruction's operand
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static __m256 low(F x) { return _mm512_castps512_ps256(x); }
  static __m256 high(F x) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)); }
  static float first(F x) { return _mm_cvtss_f32(_mm256_castps256_ps128(low(x))); }
  static float sum_lanes(F x) {
    const __m256 half = _mm256_add_ps(low(x), high(x));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float max_lane(F x) {
    const __m256 half = _mm256_max_ps(low(x), high(x));
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  // The sums of four vectors' lanes.
  static void store_sums(F a, F b, F c, F d, float* sums) {
    const __m256 ab = _mm256_hadd_ps(_mm256_add_ps(low(a), high(a)), _mm256_add_ps(low(b), high(b)));
    const __m256 cd = _mm256_hadd_ps(_mm256_add_ps(low(c), high(c)), _mm256_add_ps(low(d), high(d)));
    const __m256 quads = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
  }
  // x where j < end, else `otherwise`.
  static F below(float j, F end, F x, float otherwise) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(broadcast(j), end, _CMP_LT_OQ), broadcast(otherwise), x);
  }
  // Bounds and polynomial as in avx2/exp.h. Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits of
  // the sum; 127 more make it the exponent field of 2^whole.
  static constexpr float kShift = 12582912.0f + 127.0f;
  static F exp_not_positive(F x) {
    x = max(broadcast(-88.0f), x);
    const F shifted = fma(x, broadcast(1.44269504f), broadcast(kShift));
    const F whole = sub(shifted, broadcast(kShift));
    F r = _mm512_fnmadd_ps(whole, broadcast(0.693145752f), x);
    r = _mm512_fnmadd_ps(whole, broadcast(1.42860677e-6f), r);
    const F r2 = mul(r, r);
    const F p01 = add(r, broadcast(1.0f));
    const F p23 = fma(r, broadcast(1.0f / 6), broadcast(0.5f));
    const F p45 = fma(r, broadcast(1.0f / 120), broadcast(1.0f / 24));
    const F p67 = fma(r, broadcast(1.0f / 5040), broadcast(1.0f / 720));
    const F p = fma(fma(fma(p67, r2, p45), r2, p23), r2, p01);
    return mul(p, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
  }
};

}  // namespace
}  // namespace kbench

#include "../vector_attention.h"

namespace kbench {

void fill_op_table_avx512_attention(OpTable& table) { fill_attention(table); }

}  // namespace kbench
