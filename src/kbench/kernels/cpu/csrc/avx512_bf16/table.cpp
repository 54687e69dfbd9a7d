// What BF16 instructions add to AVX-512 VNNI: products of BF16 weights with activations rounded to one term, where one
// plane is asked for and many tokens are multiplied.
//
// One product of pairs does the work of two float32 multiply-adds, at up to their rate: twice as fast on some CPUs, not on
// others. Two terms would eat that up, so with two planes activations stay float32.
#include "../unroll.h"
#include "bf16_panel.h"

namespace kbench {
namespace {

// From how many tokens on, unless a parameter says so; not measured, no such machine was at hand.
constexpr int64_t kPanelTokens = 16;

struct Bf16Rows {
  static constexpr int64_t kRows = 6;  // as avx512/sixteen_rows.h says
  static constexpr int place(int term, int pair, int t, int T) {
    return (term * static_cast<int>(kBf16BlockPairs) + pair) * T + t;
  }

  template <int kTiles, int T>
  static inline void multiply_rows(const uint8_t* lines, int64_t blocks, const uint8_t* x, float* sums) {
    __m512 acc[T][kTiles];
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) {
      KBENCH_UNROLL
      for (int j = 0; j < kTiles; ++j) acc[t][j] = _mm512_load_ps(sums + (t * kBf16Tiles + j) * kTileRows);
    }
    for (int64_t pair = 0; pair < blocks * kBf16BlockPairs; ++pair) {
      __m512i w[kTiles];
      KBENCH_UNROLL
      for (int j = 0; j < kTiles; ++j) w[j] = _mm512_load_si512(lines + (j * kBf16PanelPairs + pair) * kLineBytes);
      KBENCH_UNROLL
      for (int t = 0; t < T; ++t) {
        int32_t dword;
        std::memcpy(&dword, x + 4 * (pair * T + t), sizeof dword);
        const __m512i values = _mm512_set1_epi32(dword);
        KBENCH_UNROLL
        for (int j = 0; j < kTiles; ++j) acc[t][j] = bf16_dots(acc[t][j], w[j], values);
      }
    }
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) {
      KBENCH_UNROLL
      for (int j = 0; j < kTiles; ++j) _mm512_store_ps(sums + (t * kBf16Tiles + j) * kTileRows, acc[t][j]);
    }
  }

  template <int kTiles, int T>
  static inline void choose_rows(int64_t rows, const uint8_t* lines, int64_t blocks, const uint8_t* x, float* sums) {
    if (rows == T) {
      multiply_rows<kTiles, T>(lines, blocks, x, sums);
    } else if constexpr (T > 1) {
      choose_rows<kTiles, T - 1>(rows, lines, blocks, x, sums);
    }
  }

  static void multiply(int64_t tiles, int64_t rows, int, const uint8_t* lines, int64_t blocks, const uint8_t* x,
                       float* sums) {
    if (tiles == 2) {
      choose_rows<2, kRows>(rows, lines, blocks, x, sums);
    } else {
      choose_rows<1, kRows>(rows, lines, blocks, x, sums);
    }
  }
};

MatmulFn multiply_floats = nullptr;  // AVX-512's, set when the table is filled

void multiply_bf16(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin, int64_t tile_end,
                   const float* bias, float* y, int64_t ldy, const MatmulParameters& p) {
  if (p.planes == 1 && tokens >= (p.panel_tokens > 0 ? p.panel_tokens : kPanelTokens)) {
    multiply_bf16_panels<Bf16Rows>(w, a, tokens, tile_begin, tile_end, bias, y, ldy, p, 1);
  } else {
    multiply_floats(w, a, tokens, tile_begin, tile_end, bias, y, ldy, p);
  }
}

}  // namespace

void fill_matmul_table_avx512_bf16(MatmulTable& table) {
  MatmulFn& fn = table.matmul[static_cast<int>(Format::BF16)];
  multiply_floats = fn;
  fn = multiply_bf16;
}

}  // namespace kbench
