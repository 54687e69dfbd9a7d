// Q4_0, Q4_1, Q4_K: unsigned nibbles, two weights per byte. See packed_layout.h.
#include "matmul_kernels.h"

#if defined(__x86_64__)
#include "block_kernel.h"

namespace kbench {
namespace {

// A product waits 4 to 5 cycles for the one before it in its sum. Up to this many tokens two sums each keep the units
// busy; with more tokens there are sums enough, and adding the two at the end would be wasted.
constexpr int kTwoSums = 3;

// Dot products of 32 weights of each row, times the row's scale.
template <int T>
inline void nibble_products(const uint8_t* lines, const int8_t* x, int64_t ldx, __m512 scale, __m512* product) {
  const __m512i mask = _mm512_set1_epi8(15);
  __m512i low_sum[T], high_sum[T];
  KBENCH_UNROLL
  for (int t = 0; t < T; ++t) low_sum[t] = high_sum[t] = _mm512_setzero_si512();
  KBENCH_UNROLL
  for (int l = 0; l < 4; ++l) {
    prefetch_ahead(lines + l * kLineBytes);
    const __m512i raw = load_line(lines + l * kLineBytes);
    const __m512i low = _mm512_and_si512(raw, mask), high = _mm512_and_si512(_mm512_srli_epi16(raw, 4), mask);
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) {
      low_sum[t] = dot_quad(low_sum[t], low, x + t * ldx + 4 * l);
      __m512i& sum = T <= kTwoSums ? high_sum[t] : low_sum[t];
      sum = dot_quad(sum, high, x + t * ldx + 16 + 4 * l);
    }
  }
  KBENCH_UNROLL
  for (int t = 0; t < T; ++t) {
    const __m512i dot = T <= kTwoSums ? _mm512_add_epi32(low_sum[t], high_sum[t]) : low_sum[t];
    product[t] = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), scale);
  }
}

struct NibbleTokens {
  static constexpr int kMaxTokens = 6;
  static constexpr int kSums = 1;
};

struct Q4_0 : NibbleTokens {
  static constexpr int kBlocks = 1;
  const uint8_t* quants;
  const uint8_t* d;

  Q4_0(const uint8_t* tile, int64_t k) : quants(tile), d(tile + k / kBlock * kNibbleBlockBytes) {}
  void begin() {}
  template <int T>
  void block(int, const int8_t* x, int64_t ldx, __m512* product, __m512* offset) const {
    prefetch_ahead(d);
    const __m512 scale = load_halves(d);
    offset[0] = _mm512_mul_ps(scale, _mm512_set1_ps(-8.0f));  // w = d * (q - 8)
    nibble_products<T>(quants, x, ldx, scale, product);
  }
  void advance() {
    quants += kNibbleBlockBytes;
    d += kHalvesBytes;
  }
};

struct Q4_1 : NibbleTokens {
  static constexpr int kBlocks = 1;
  const uint8_t* p;

  Q4_1(const uint8_t* tile, int64_t) : p(tile) {}
  void begin() {}
  template <int T>
  void block(int, const int8_t* x, int64_t ldx, __m512* product, __m512* offset) const {
    prefetch_ahead(p);
    offset[0] = load_halves(p + kHalvesBytes);
    nibble_products<T>(p + 2 * kHalvesBytes, x, ldx, load_halves(p), product);
  }
  void advance() { p += kQ4_1BlockBytes; }
};

struct Q4_K : NibbleTokens {
  static constexpr int kBlocks = 8;
  const uint8_t* p;
  __m512 d, dmin;

  Q4_K(const uint8_t* tile, int64_t) : p(tile) {}
  void begin() {
    d = load_halves(p);
    dmin = _mm512_sub_ps(_mm512_setzero_ps(), load_halves(p + kHalvesBytes));
  }
  template <int T>
  void block(int b, const int8_t* x, int64_t ldx, __m512* product, __m512* offset) const {
    const uint8_t* sc = p + kQ4_KScales + b * kQ4_KScalesBytes;
    offset[0] = _mm512_mul_ps(dmin, load_u8(sc + kTileRows));
    nibble_products<T>(p + kQ4_KQuants + b * kNibbleBlockBytes, x, ldx, _mm512_mul_ps(d, load_u8(sc)), product);
  }
  void advance() { p += kQ4_KBytes; }
};

}  // namespace

namespace avx512_vnni {
KBENCH_MATMUL(matmul_q4_0) { multiply_tiles<BlockKernel<Q4_0>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
KBENCH_MATMUL(matmul_q4_1) { multiply_tiles<BlockKernel<Q4_1>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
KBENCH_MATMUL(matmul_q4_k) { multiply_tiles<BlockKernel<Q4_K>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
}  // namespace avx512_vnni
}  // namespace kbench
#endif
