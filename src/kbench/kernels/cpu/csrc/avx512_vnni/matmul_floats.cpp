// F32, F16, BF16: 16 rows per column, exact products, float32 accumulation.
#include "matmul_kernels.h"

#if defined(__x86_64__)
#include "block_kernel.h"

namespace kbench {
namespace {

struct F32 {
  static constexpr int64_t kColumnBytes = 64;
  static inline __m512 load(const uint8_t* column) { return _mm512_load_ps(reinterpret_cast<const float*>(column)); }
};

struct F16 {
  static constexpr int64_t kColumnBytes = 32;
  static inline __m512 load(const uint8_t* column) { return load_halves(column); }
};

struct BF16 {
  static constexpr int64_t kColumnBytes = 32;
  static inline __m512 load(const uint8_t* column) {
    const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(column));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
};

template <class W>
struct FloatKernel {
  static constexpr int64_t kActivationBytes = sizeof(float);
  static constexpr int kMaxTokens = 12;  // 12 sums: enough to hide 4 cycles on two units, and few loads per product
  template <int T>
  static inline void run(const uint8_t* tile, const Activation& a, int64_t token, float (*out)[kTileRows]) {
    // A multiply-add takes 4 cycles and two start per cycle: 8 chains, or few tokens wait for their own results.
    constexpr int kChains = T == 1 ? 8 : T <= 3 ? 4 : T <= 6 ? 2 : 1;
    const float* x = a.x + token * a.ldx;
    __m512 acc[kChains][T];
    KBENCH_UNROLL
    for (int c = 0; c < kChains; ++c) {
      KBENCH_UNROLL
      for (int t = 0; t < T; ++t) acc[c][t] = _mm512_setzero_ps();
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
      for (int c = 1; c < kChains; ++c) acc[0][t] = _mm512_add_ps(acc[0][t], acc[c][t]);
      _mm512_store_ps(out[t], acc[0][t]);
    }
  }

 private:
  template <int T>
  static inline void add_column(const uint8_t* column, const float* x, int64_t ldx, __m512* acc) {
    const __m512 w = W::load(column);
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) acc[t] = _mm512_fmadd_ps(w, _mm512_set1_ps(x[t * ldx]), acc[t]);
  }
};

}  // namespace

namespace avx512_vnni {
KBENCH_MATMUL(matmul_f32) { multiply_tiles<FloatKernel<F32>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
KBENCH_MATMUL(matmul_f16) { multiply_tiles<FloatKernel<F16>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
KBENCH_MATMUL(matmul_bf16) { multiply_tiles<FloatKernel<BF16>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy); }
}  // namespace avx512_vnni
}  // namespace kbench
#endif
