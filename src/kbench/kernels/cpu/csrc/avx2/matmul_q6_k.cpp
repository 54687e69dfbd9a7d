// Q6_K: four low bits in nibble lines, two high bits in lines of their own. See packed_layout.h.
#include "matmul_kernels.h"

#if defined(__x86_64__)
#include "block_kernel.h"

namespace kbench {
namespace {

// sc of 8 rows as int16, each twice: the shape in which madd multiplies two int16 sums of a row by it.
inline __m256i load_scale_pairs(const uint8_t* p) {
  const __m128i twice = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)),
                                          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_cvtepi8_epi16(twice);
}

inline __m256 load_i8(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

struct Q6_K {
  // Unpacking costs most here, so many tokens share it; from 5 tokens on, 16 rows at once spill more than they save.
  static constexpr int kMaxTokens = 6;
  static constexpr int kWideTokens = 4;
  static constexpr int kSums = 2;
  static constexpr int kBlocks = 8;
  const uint8_t* scales;
  const uint8_t* quants;
  const uint8_t* d;
  __m256 d_row[2];

  Q6_K(const uint8_t* tile, int64_t k, int half)
      : scales(tile + half * 8),
        quants(tile + kQ6_KQuants + half * 32),
        d(tile + k / kSuperBlock * kQ6_KBytes + half * 16) {}
  template <int H>
  void begin() {
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) d_row[h] = load_halves(d + h * 16);
  }
  // The integer scales of both groups of 16 are applied to the integer sums: |dot| <= 2 * 16 * 63 * 127 * 128 < 2^25.
  template <int T, int H>
  void block(int b, const int8_t* x, int64_t ldx, __m256i (*dots)[H], __m256* scale, __m256 (*offset)[2]) const {
    const __m256i low = _mm256_set1_epi8(0x0f), high = _mm256_set1_epi8(0x30);
    const uint8_t* sc = scales + 2 * b * kQ6_KScalesBytes;
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) {
      // w = d * sc * (q - 32). With s the sum over 32 and s0 the sum over the first 16, the offsets of both groups are
      //   -32 d (sc0 s0 + sc1 (s - s0)) = -32 d sc1 * s  +  -32 d (sc0 - sc1) * s0.
      const __m256 sc0 = load_i8(sc + h * 8), sc1 = load_i8(sc + kQ6_KScalesBytes + h * 8);
      const __m256 d32 = _mm256_mul_ps(d_row[h], _mm256_set1_ps(-32.0f));
      scale[h] = d_row[h];
      offset[h][0] = _mm256_mul_ps(d32, sc1);
      offset[h][1] = _mm256_mul_ps(d32, _mm256_sub_ps(sc0, sc1));
    }
    KBENCH_UNROLL
    for (int group = 0; group < 2; ++group) {
      const uint8_t* lines = quants + (2 * b + group) * kQ6_KGroupBytes;
      KBENCH_UNROLL
      for (int l = 0; l < 3; ++l) prefetch_ahead(lines + l * kLineBytes);
      KBENCH_UNROLL
      for (int h = 0; h < H; ++h) {
        const __m256i a0 = load_rows(lines + h * 32), a1 = load_rows(lines + kLineBytes + h * 32);
        const __m256i c = load_rows(lines + 2 * kLineBytes + h * 32);
        const __m256i w[4] = {
            _mm256_or_si256(_mm256_and_si256(a0, low), _mm256_and_si256(_mm256_slli_epi16(c, 4), high)),
            _mm256_or_si256(_mm256_and_si256(a1, low), _mm256_and_si256(_mm256_slli_epi16(c, 2), high)),
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a0, 4), low), _mm256_and_si256(c, high)),
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a1, 4), low),
                            _mm256_and_si256(_mm256_srli_epi16(c, 2), high)),
        };
        const __m256i sc_pairs = load_scale_pairs(sc + group * kQ6_KScalesBytes + h * 8);
        KBENCH_UNROLL
        for (int t = 0; t < T; ++t) {
          // Two products of at most 2 * 63 * 127 fit int16 (32004), four do not.
          __m256i pairs[2];
          KBENCH_UNROLL
          for (int j = 0; j < 2; ++j) {
            const int8_t* quads = x + t * ldx + 16 * group + 8 * j;
            pairs[j] = _mm256_add_epi16(_mm256_maddubs_epi16(w[2 * j], broadcast_quad(quads)),
                                        _mm256_maddubs_epi16(w[2 * j + 1], broadcast_quad(quads + 4)));
          }
          const __m256i sum =
              _mm256_add_epi32(_mm256_madd_epi16(pairs[0], sc_pairs), _mm256_madd_epi16(pairs[1], sc_pairs));
          dots[t][h] = group == 0 ? sum : _mm256_add_epi32(dots[t][h], sum);
          settle(dots[t][h]);
        }
      }
    }
  }
  void advance() {
    scales += kQ6_KBytes;
    quants += kQ6_KBytes;
    d += kHalvesBytes;
  }
};

}  // namespace

namespace avx2 {
KBENCH_MATMUL(matmul_q6_k) { multiply_tiles<BlockKernel<Q6_K>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
}  // namespace avx2
}  // namespace kbench
#endif
