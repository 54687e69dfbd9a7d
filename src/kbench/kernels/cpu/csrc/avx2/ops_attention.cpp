// Attention, eight floats at a time.
#include <immintrin.h>

#include "exp.h"
#include "op_table.h"

namespace kbench {
namespace {

struct V {
  using F = __m256;
  static constexpr int kWidth = 8;
  // Two vectors a row: 12 accumulators, two operands and one broadcast of the 16 registers.
  static constexpr int kRowTile = 6;

  static F zero() { return _mm256_setzero_ps(); }
  static F broadcast(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load_f16(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static F load_bf16(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static F load_i8(const uint8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static F load_scale(const uint8_t* p) {
    uint16_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(bits)));
  }
  static float half(const uint8_t* p) {
    uint16_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return _cvtsh_ss(bits);
  }
  // x in a register, rather than read from memory by each instruction that uses it.
  static F held(F x) {
    asm("" : "+x"(x));
    return x;
  }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F exp_not_positive(F x) { return exp_not_positive_ps(x); }
  static float first(F x) { return _mm256_cvtss_f32(x); }
  static float sum_lanes(F x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  static float max_lane(F x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
  }
  // x where j < end, else `otherwise`.
  static F below(float j, F end, F x, float otherwise) {
    return _mm256_blendv_ps(broadcast(otherwise), x, _mm256_cmp_ps(broadcast(j), end, _CMP_LT_OQ));
  }
  // The sums of four vectors' lanes.
  static void store_sums(F a, F b, F c, F d, float* sums) {
    const F quads = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
  }
};

}  // namespace
}  // namespace kbench

#include "../vector_attention.h"

namespace kbench {

void fill_op_table_avx2_attention(OpTable& table) { fill_attention(table); }

}  // namespace kbench
