// Q6_K: four low bits in nibble lines, two high bits in lines of their own. See packed_layout.h.
#include "matmul_kernels.h"

#if defined(__x86_64__)
#include "block_kernel.h"

namespace kbench {
namespace {

struct Q6_K {
  static constexpr int kMaxTokens = 6;
  static constexpr int kSums = 2;
  static constexpr int kBlocks = 8;
  const uint8_t* p;
  const uint8_t* d;
  __m512 d_row;

  Q6_K(const uint8_t* tile, int64_t k) : p(tile), d(tile + k / kSuperBlock * kQ6_KBytes) {}
  void begin() { d_row = load_halves(d); }
  template <int T>
  void block(int b, const int8_t* x, int64_t ldx, __m512* product, __m512* offset) const {
    const __m512i low = _mm512_set1_epi8(0x0f), high = _mm512_set1_epi8(0x30);
    const uint8_t* sc = p + 2 * b * kQ6_KScalesBytes;
    // w = d * sc * (q - 32). With s the sum over 32 and s0 the sum over the first 16, the offsets of both groups are
    //   -32 d (sc0 s0 + sc1 (s - s0)) = -32 d sc1 * s  +  -32 d (sc0 - sc1) * s0.
    const __m512 scale[2] = {_mm512_mul_ps(d_row, load_i8(sc)),
                             _mm512_mul_ps(d_row, load_i8(sc + kQ6_KScalesBytes))};
    offset[0] = _mm512_mul_ps(scale[1], _mm512_set1_ps(-32.0f));
    offset[1] = _mm512_mul_ps(_mm512_sub_ps(scale[0], scale[1]), _mm512_set1_ps(-32.0f));
    KBENCH_UNROLL
    for (int group = 0; group < 2; ++group) {
      const uint8_t* lines = p + kQ6_KQuants + (2 * b + group) * kQ6_KGroupBytes;
      KBENCH_UNROLL
      for (int l = 0; l < 3; ++l) prefetch_ahead(lines + l * kLineBytes);
      const __m512i a0 = load_line(lines), a1 = load_line(lines + kLineBytes), c = load_line(lines + 2 * kLineBytes);
      // Ternary logic 0xf8 is "first or (second and third)".
      const __m512i w[4] = {
          _mm512_ternarylogic_epi32(_mm512_and_si512(a0, low), _mm512_slli_epi16(c, 4), high, 0xf8),
          _mm512_ternarylogic_epi32(_mm512_and_si512(a1, low), _mm512_slli_epi16(c, 2), high, 0xf8),
          _mm512_ternarylogic_epi32(_mm512_and_si512(_mm512_srli_epi16(a0, 4), low), c, high, 0xf8),
          _mm512_ternarylogic_epi32(_mm512_and_si512(_mm512_srli_epi16(a1, 4), low), _mm512_srli_epi16(c, 2), high,
                                    0xf8),
      };
      KBENCH_UNROLL
      for (int t = 0; t < T; ++t) {
        __m512i dot = _mm512_setzero_si512();
        KBENCH_UNROLL
        for (int j = 0; j < 4; ++j) dot = dot_quad(dot, w[j], x + t * ldx + 16 * group + 4 * j);
        const __m512 value = _mm512_cvtepi32_ps(dot);
        product[t] = group == 0 ? _mm512_mul_ps(value, scale[0]) : _mm512_fmadd_ps(value, scale[1], product[t]);
      }
    }
  }
  void advance() {
    p += kQ6_KBytes;
    d += kHalvesBytes;
  }
};

}  // namespace

namespace avx512_vnni {
KBENCH_MATMUL(matmul_q6_k) { multiply_tiles<BlockKernel<Q6_K>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
}  // namespace avx512_vnni
}  // namespace kbench
#endif
