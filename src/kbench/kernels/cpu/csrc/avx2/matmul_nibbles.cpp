// Q4_0, Q4_1, Q4_K: unsigned nibbles, two weights per byte. See packed_layout.h.
#include "matmul_kernels.h"

#if defined(__x86_64__)
#include "block_kernel.h"

namespace kbench {
namespace {

// Of 32 weights; `lines` at the first row of the first half. Eight products of at most 2 * 15 * 127 fit int16
// (30480), so the widening to int32 happens once per block.
template <int T, int H>
inline void nibble_dots(const uint8_t* lines, const int8_t* x, int64_t ldx, __m256i (*dots)[H]) {
  const __m256i mask = _mm256_set1_epi8(15);
  __m256i sum[T][H];
  KBENCH_UNROLL
  for (int l = 0; l < 4; ++l) {
    prefetch_ahead(lines + l * kLineBytes);
    __m256i low[H], high[H];
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) {
      const __m256i raw = load_rows(lines + l * kLineBytes + h * 32);
      low[h] = _mm256_and_si256(raw, mask);
      high[h] = _mm256_and_si256(_mm256_srli_epi16(raw, 4), mask);
    }
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) {
      const __m256i x_low = broadcast_quad(x + t * ldx + 4 * l);
      const __m256i x_high = broadcast_quad(x + t * ldx + 16 + 4 * l);
      KBENCH_UNROLL
      for (int h = 0; h < H; ++h) {
        const __m256i both =
            _mm256_add_epi16(_mm256_maddubs_epi16(low[h], x_low), _mm256_maddubs_epi16(high[h], x_high));
        sum[t][h] = l == 0 ? both : _mm256_add_epi16(sum[t][h], both);
        settle(sum[t][h]);
      }
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
  KBENCH_UNROLL
  for (int t = 0; t < T; ++t) {
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) dots[t][h] = _mm256_madd_epi16(sum[t][h], ones);
  }
}

// Measured on Zen 3 at 120 tokens, relative to 4 tokens x 8 rows: 4 x 16 +12 %, 5 x 16 +17 %, 6 x 16 +14 %, 6 x 8 +4 %.
// Both halves share a broadcast activation, and more tokens share an unpacked weight, until sums spill.
struct NibbleTokens {
  static constexpr int kMaxTokens = 5;
  static constexpr int kWideTokens = kMaxTokens;
  static constexpr int kSums = 1;
};

struct Q4_0 : NibbleTokens {
  static constexpr int kBlocks = 1;
  const uint8_t* quants;
  const uint8_t* d;

  Q4_0(const uint8_t* tile, int64_t k, int half)
      : quants(tile + half * 32), d(tile + k / kBlock * kNibbleBlockBytes + half * 16) {}
  template <int H>
  void begin() {}
  template <int T, int H>
  void block(int, const int8_t* x, int64_t ldx, __m256i (*dots)[H], __m256* scale, __m256 (*offset)[2]) const {
    prefetch_ahead(d);
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) {
      scale[h] = load_halves(d + h * 16);
      offset[h][0] = _mm256_mul_ps(scale[h], _mm256_set1_ps(-8.0f));  // w = d * (q - 8)
    }
    nibble_dots<T, H>(quants, x, ldx, dots);
  }
  void advance() {
    quants += kNibbleBlockBytes;
    d += kHalvesBytes;
  }
};

struct Q4_1 : NibbleTokens {
  static constexpr int kBlocks = 1;
  const uint8_t* d;
  const uint8_t* quants;

  Q4_1(const uint8_t* tile, int64_t, int half) : d(tile + half * 16), quants(tile + 2 * kHalvesBytes + half * 32) {}
  template <int H>
  void begin() {}
  template <int T, int H>
  void block(int, const int8_t* x, int64_t ldx, __m256i (*dots)[H], __m256* scale, __m256 (*offset)[2]) const {
    prefetch_ahead(d);
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) {
      scale[h] = load_halves(d + h * 16);
      offset[h][0] = load_halves(d + kHalvesBytes + h * 16);
    }
    nibble_dots<T, H>(quants, x, ldx, dots);
  }
  void advance() {
    d += kQ4_1BlockBytes;
    quants += kQ4_1BlockBytes;
  }
};

struct Q4_K : NibbleTokens {
  static constexpr int kBlocks = 8;
  const uint8_t* d;
  const uint8_t* scales;
  const uint8_t* quants;
  __m256 d_row[2], dmin_row[2];

  Q4_K(const uint8_t* tile, int64_t, int half)
      : d(tile + half * 16), scales(tile + kQ4_KScales + half * 8), quants(tile + kQ4_KQuants + half * 32) {}
  template <int H>
  void begin() {
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) {
      d_row[h] = load_halves(d + h * 16);
      dmin_row[h] = _mm256_sub_ps(_mm256_setzero_ps(), load_halves(d + kHalvesBytes + h * 16));
    }
  }
  template <int T, int H>
  void block(int b, const int8_t* x, int64_t ldx, __m256i (*dots)[H], __m256* scale, __m256 (*offset)[2]) const {
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) {
      scale[h] = _mm256_mul_ps(d_row[h], load_u8(scales + b * kQ4_KScalesBytes + h * 8));
      offset[h][0] = _mm256_mul_ps(dmin_row[h], load_u8(scales + b * kQ4_KScalesBytes + kTileRows + h * 8));
    }
    nibble_dots<T, H>(quants + b * kNibbleBlockBytes, x, ldx, dots);
  }
  void advance() {
    d += kQ4_KBytes;
    scales += kQ4_KBytes;
    quants += kQ4_KBytes;
  }
};

}  // namespace

namespace avx2 {
KBENCH_MATMUL(matmul_q4_0) { multiply_tiles<BlockKernel<Q4_0>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
KBENCH_MATMUL(matmul_q4_1) { multiply_tiles<BlockKernel<Q4_1>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
KBENCH_MATMUL(matmul_q4_k) { multiply_tiles<BlockKernel<Q4_K>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
}  // namespace avx2
}  // namespace kbench
#endif
