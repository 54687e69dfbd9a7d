// Step 13, VNNI: registers of 64 bytes, two blocks at a time, and one instruction (vpdpbusd) in place of step 10's two:
// it multiplies unsigned by signed bytes and adds groups of four to 16 sums of 32 bits.
//
//   sums   0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15        first block | second block, each with its own scale
//
// Weights come no faster from memory, so one token gains little; many tokens, limited by arithmetic, gain much.
#include "../../avx512/intrinsics.h"
#include "../ladder.h"

#if defined(__x86_64__) || defined(KBENCH_SIMDE)
namespace kbench::ladder {
namespace {

// 64 products of signed bytes in 16 sums. As in step 10, the weight's sign moves to the activation.
inline __m512 products_of_two_blocks(__m512i w, __m512i x) {
  const __m512i signed_x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
  return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_abs_epi8(w), signed_x));
}

inline float half_to_float(uint16_t half) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half))); }

// 8 times a, then 8 times b.
inline __m512 two_scales(float a, float b) {
  return _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(a), _mm512_set1_ps(b));
}

inline float add_lanes(__m512 v) {
  float lanes[16];
  _mm512_storeu_ps(lanes, v);
  float total = 0.0f;
  for (float lane : lanes) total += lane;
  return total;
}

}  // namespace

void rows_vnni(const Linear& call, const Int8Rows& x, int64_t begin, int64_t end) {
  const int64_t blocks_per_row = call.k / kBlock;
  const int8_t* all_quants = static_cast<const int8_t*>(call.w);
  const uint16_t* all_scales = reinterpret_cast<const uint16_t*>(all_quants + call.n * call.k);
  for (int64_t row = begin; row < end; ++row) {
    const int8_t* w = all_quants + row * call.k;
    const uint16_t* scale_w = all_scales + row * blocks_per_row;
    for (int64_t t = 0; t < call.tokens; ++t) {
      const int8_t* q = x.q + t * call.k;
      const float* scale = x.scale + t * blocks_per_row;
      __m512 sum = _mm512_setzero_ps();
      int64_t b = 0;
      for (; b + 2 <= blocks_per_row; b += 2) {
        const float first = half_to_float(scale_w[b]) * scale[b];
        const float second = half_to_float(scale_w[b + 1]) * scale[b + 1];
        const __m512i two_w = _mm512_loadu_si512(w + b * kBlock), two_x = _mm512_loadu_si512(q + b * kBlock);
        sum = _mm512_fmadd_ps(products_of_two_blocks(two_w, two_x), two_scales(first, second), sum);
      }
      float total = add_lanes(sum);
      if (b < blocks_per_row) {  // a row of an odd number of blocks
        int32_t products = 0;
        for (int64_t i = b * kBlock; i < call.k; ++i) products += w[i] * q[i];
        total += half_to_float(scale_w[b]) * scale[b] * static_cast<float>(products);
      }
      call.y[t * call.n + row] = total;
    }
  }
}

}  // namespace kbench::ladder
#endif
