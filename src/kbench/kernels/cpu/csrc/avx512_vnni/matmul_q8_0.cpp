// Q8_0: signed bytes. See packed_layout.h.
#include "matmul_kernels.h"

#if defined(__x86_64__)
#include "block_kernel.h"

namespace kbench {
namespace {

struct Q8_0 {
  static constexpr int kMaxTokens = 6;
  static constexpr int kSums = 1;
  static constexpr int kBlocks = 1;
  const uint8_t* quants;
  const uint8_t* d;

  Q8_0(const uint8_t* tile, int64_t k) : quants(tile), d(tile + k / kBlock * kByteBlockBytes) {}
  void begin() {}
  // dpbusd wants unsigned weights: flipping the top bit adds 128, and the offset takes -128 * d * sum back.
  template <int T>
  void block(int, const int8_t* x, int64_t ldx, __m512* product, __m512* offset) const {
    const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
    prefetch_ahead(d);
    const __m512 scale = load_halves(d);
    offset[0] = _mm512_mul_ps(scale, _mm512_set1_ps(-128.0f));
    __m512i dot[T][2];
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) dot[t][0] = dot[t][1] = _mm512_setzero_si512();
    KBENCH_UNROLL
    for (int l = 0; l < 8; ++l) {
      prefetch_ahead(quants + l * kLineBytes);
      const __m512i w = _mm512_xor_si512(load_line(quants + l * kLineBytes), flip);
      KBENCH_UNROLL
      for (int t = 0; t < T; ++t) {
        __m512i& sum = dot[t][T <= 3 ? l % 2 : 0];  // two sums for few tokens: see matmul_nibbles.cpp
        sum = dot_quad(sum, w, x + t * ldx + 4 * l);
      }
    }
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) {
      const __m512i all = T <= 3 ? _mm512_add_epi32(dot[t][0], dot[t][1]) : dot[t][0];
      product[t] = _mm512_mul_ps(_mm512_cvtepi32_ps(all), scale);
    }
  }
  void advance() {
    quants += kByteBlockBytes;
    d += kHalvesBytes;
  }
};

}  // namespace

namespace avx512_vnni {
KBENCH_MATMUL(matmul_q8_0) { multiply_tiles<BlockKernel<Q8_0>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
}  // namespace avx512_vnni
}  // namespace kbench
#endif
