// F32, F16, BF16: 16 rows per column, exact products, float32 accumulation.
#include "matmul_kernels.h"

#if defined(__x86_64__)
#include "block_kernel.h"

namespace kbench {
namespace {

struct F32 {
  static constexpr int64_t kColumnBytes = 64;
  static inline __m256 load(const uint8_t* column, int half) {
    return _mm256_load_ps(reinterpret_cast<const float*>(column) + 8 * half);
  }
};

struct F16 {
  static constexpr int64_t kColumnBytes = 32;
  static inline __m256 load(const uint8_t* column, int half) { return load_halves(column + 16 * half); }
};

struct BF16 {
  static constexpr int64_t kColumnBytes = 32;
  static inline __m256 load(const uint8_t* column, int half) {
    const __m128i bits = _mm_load_si128(reinterpret_cast<const __m128i*>(column + 16 * half));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
};

template <class W>
struct FloatKernel {
  static constexpr int64_t kActivationBytes = sizeof(float);
  static constexpr int kMaxTokens = 6;  // 12 accumulators, two registers of weights, one of x: 15 of 16
  template <int T>
  static inline void run(const uint8_t* tile, const Activation& a, int64_t token, float (*out)[kTileRows]) {
    // A multiply-add takes 4 cycles and two start per cycle: 8 chains, or few tokens wait for their own results.
    constexpr int kChains = T == 1 ? 4 : T <= 3 ? 2 : 1;
    const float* x = a.x + token * a.ldx;
    __m256 acc[kChains][T][2];
    KBENCH_UNROLL
    for (int c = 0; c < kChains; ++c) {
      KBENCH_UNROLL
      for (int t = 0; t < T; ++t) acc[c][t][0] = acc[c][t][1] = _mm256_setzero_ps();
    }
    int64_t column = 0;
    for (; column + kChains <= a.k; column += kChains) {
      KBENCH_UNROLL
      for (int c = 0; c < kChains; ++c) {
        if (c * W::kColumnBytes % kLineBytes == 0) prefetch_ahead(tile + (column + c) * W::kColumnBytes);
        add_column<T>(tile + (column + c) * W::kColumnBytes, x + column + c, a.ldx, acc[c]);
      }
    }
    for (; column < a.k; ++column) add_column<T>(tile + column * W::kColumnBytes, x + column, a.ldx, acc[0]);
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) {
      KBENCH_UNROLL
      for (int h = 0; h < 2; ++h) {
        KBENCH_UNROLL
        for (int c = 1; c < kChains; ++c) acc[0][t][h] = _mm256_add_ps(acc[0][t][h], acc[c][t][h]);
        _mm256_store_ps(out[t] + 8 * h, acc[0][t][h]);
      }
    }
  }

 private:
  template <int T>
  static inline void add_column(const uint8_t* column, const float* x, int64_t ldx, __m256 (*acc)[2]) {
    const __m256 w0 = W::load(column, 0), w1 = W::load(column, 1);
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) {
      const __m256 value = _mm256_broadcast_ss(x + t * ldx);
      acc[t][0] = _mm256_fmadd_ps(w0, value, acc[t][0]);
      acc[t][1] = _mm256_fmadd_ps(w1, value, acc[t][1]);
    }
  }
};

}  // namespace

namespace avx2 {
KBENCH_MATMUL(matmul_f32) { multiply_tiles<FloatKernel<F32>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
KBENCH_MATMUL(matmul_f16) { multiply_tiles<FloatKernel<F16>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
KBENCH_MATMUL(matmul_bf16) { multiply_tiles<FloatKernel<BF16>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
}  // namespace avx2
}  // namespace kbench
#endif
