// BF16 weights times activations in one or two terms of bfloat16, in tile registers. The unit does the work of 16 float32
// multiply-adds of AVX-512 in the time of one: two terms, which leave 2^-16 of an activation, are still eight times as
// fast.
#include "../avx512_bf16/bf16_panel.h"
#include "../matmul/kernels.h"
#include "tiles.h"

namespace kbench {
namespace {

// From how many tokens on, unless a parameter says so; not measured, no such machine was at hand.
constexpr int64_t kPanelTokens = 8;

struct Bf16Tiles {
  static constexpr int64_t kRows = kTileUnitRows;
  static constexpr int place(int term, int pair, int t, int T) { return (term * T + t) * 16 + pair; }

  // One block of both tiles.
#define KBENCH_MULTIPLY_PAIRS(c0, c1)                                              \
  _tile_loadd(KBENCH_B0, lines, kLineBytes);                                       \
  _tile_loadd(KBENCH_A, x, kLineBytes);                                            \
  _tile_dpbf16ps(c0, KBENCH_A, KBENCH_B0);                                         \
  if (tiles == 2) {                                                                \
    _tile_loadd(KBENCH_B1, lines + kBf16PanelPairs * kLineBytes, kLineBytes);      \
    _tile_dpbf16ps(c1, KBENCH_A, KBENCH_B1);                                       \
  }                                                                                \
  if (terms == 2) {                                                                \
    _tile_loadd(KBENCH_A1, x + rows * kLineBytes, kLineBytes);                     \
    _tile_dpbf16ps(c0, KBENCH_A1, KBENCH_B0);                                      \
    if (tiles == 2) _tile_dpbf16ps(c1, KBENCH_A1, KBENCH_B1);                      \
  }                                                                                \
  lines += kBf16BlockPairs * kLineBytes;                                           \
  x += terms * rows * kLineBytes

  static void multiply(int64_t tiles, int64_t rows, int terms, const uint8_t* lines, int64_t blocks, const uint8_t* x,
                       float* sums) {
    // Sums of even and of odd blocks of each tile, in memory: a group may have fewer than 16 rows.
    alignas(64) float parts[2][2][kTileUnitRows][kTileRows];
    memory_is_read(lines);
    _tile_zero(KBENCH_C0);
    _tile_zero(KBENCH_C1);
    _tile_zero(KBENCH_C2);
    _tile_zero(KBENCH_C3);
    for (int64_t b = 0; b < blocks; b += 2) {
      KBENCH_MULTIPLY_PAIRS(KBENCH_C0, KBENCH_C1);
      if (b + 1 == blocks) break;
      KBENCH_MULTIPLY_PAIRS(KBENCH_C2, KBENCH_C3);
    }
    _tile_stored(KBENCH_C0, parts[0][0], kLineBytes);
    _tile_stored(KBENCH_C1, parts[0][1], kLineBytes);
    _tile_stored(KBENCH_C2, parts[1][0], kLineBytes);
    _tile_stored(KBENCH_C3, parts[1][1], kLineBytes);
    for (int64_t t = 0; t < rows; ++t) {
      for (int64_t j = 0; j < tiles; ++j) {
        float* sum = sums + (t * kBf16Tiles + j) * kTileRows;
        const __m512 part = _mm512_add_ps(_mm512_load_ps(parts[0][j][t]), _mm512_load_ps(parts[1][j][t]));
        _mm512_store_ps(sum, _mm512_add_ps(_mm512_load_ps(sum), part));
      }
    }
  }
#undef KBENCH_MULTIPLY_PAIRS
};

MatmulFn multiply_few = nullptr;  // what AMX builds on, set when the table is filled

void multiply_bf16(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin, int64_t tile_end,
                   const float* bias, float* y, int64_t ldy, const MatmulParameters& p) {
  if (tokens < (p.panel_tokens > 0 ? p.panel_tokens : kPanelTokens)) {
    return multiply_few(w, a, tokens, tile_begin, tile_end, bias, y, ldy, p);
  }
  const TileScope tiles(kBf16BlockPairs);
  multiply_bf16_panels<Bf16Tiles>(w, a, tokens, tile_begin, tile_end, bias, y, ldy, p, p.planes);
}

}  // namespace
}  // namespace kbench

void kbench::KBENCH_ISA::fill_own(MatmulTable& table) {
  MatmulFn& fn = table.matmul[static_cast<int>(Format::BF16)];
  multiply_few = fn;
  fn = multiply_bf16;
}
