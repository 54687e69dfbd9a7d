// The shapes of byte panels that the tile unit multiplies, see ../matmul/panel_kernel.h: signed activations times
// unsigned weights of a block, or of each of its two groups, in one instruction for 16 tokens and 16 rows. Integer sums
// leave the unit through memory, the first-level cache, to meet their scales.
#pragma once
#include "../matmul/panel_kernel.h"
#include "tiles.h"

namespace kbench {
namespace {

template <class R, int n_scales>
struct TileLines {
  static constexpr int kLines = 8, kScales = n_scales;
  // A row's dwords of a block stand side by side. Rows that a group lacks are read from what follows, and not used.
  static constexpr int place(int line, int t, int) { return t * kLines + line; }
  static const int8_t* values(const Activation& a) { return a.q; }
  static const float* scales(const Activation& a) { return a.scale; }
  static const float* sums(const Activation& a) { return a.sum; }
};

// dots[tile] = x times the lines of each tile; the registers of the sums take turns.
#define KBENCH_MULTIPLY_BYTES(c0, c1)            \
  _tile_loadd(KBENCH_A, x, row_bytes);           \
  _tile_loadd(KBENCH_B0, lines, kLineBytes);     \
  _tile_zero(c0);                                \
  _tile_dpbsud(c0, KBENCH_A, KBENCH_B0);         \
  if (tiles == 2) {                              \
    _tile_loadd(KBENCH_B1, second, kLineBytes);  \
    _tile_zero(c1);                              \
    _tile_dpbsud(c1, KBENCH_A, KBENCH_B1);       \
    _tile_stored(c1, dots[1], kLineBytes);       \
  }                                              \
  _tile_stored(c0, dots[0], kLineBytes)

using ByteDots = int32_t[2][kTileUnitRows][kTileRows];

inline void multiply_bytes(bool odd, int64_t tiles, const uint8_t* lines, const uint8_t* second, const uint8_t* x,
                           int64_t row_bytes, ByteDots& dots) {
  memory_is_read(lines);
  if (odd) {
    KBENCH_MULTIPLY_BYTES(KBENCH_C2, KBENCH_C3);
  } else {
    KBENCH_MULTIPLY_BYTES(KBENCH_C0, KBENCH_C1);
  }
}
#undef KBENCH_MULTIPLY_BYTES

template <class R, int n_scales, int kOffsets>
void multiply_byte_tiles(int64_t tiles, int64_t rows, const uint8_t* lines, const float* floats, int64_t stride,
                         int64_t blocks, const uint8_t* x, float* sums) {
  using S = TileLines<R, n_scales>;
  static_assert(R::kRows == kTileRows && R::kPanelTiles == 2 && R::kPanelRows == kTileUnitRows, "C0 and C1");
  constexpr int kFloats = n_scales + kOffsets;
  constexpr int64_t kRowBytes = 4 * S::kLines, kGroupBytes = kRowBytes / n_scales;
  alignas(64) ByteDots dots[n_scales];
  for (int64_t b = 0; b < blocks; ++b) {
    for (int g = 0; g < n_scales; ++g) {
      const uint8_t* w = lines + (b * S::kLines + g * S::kLines / n_scales) * kLineBytes;
      multiply_bytes((b * n_scales + g) % 2 != 0, tiles, w, w + stride * S::kLines * kLineBytes, x + g * kGroupBytes,
                     kRowBytes, dots[g]);
    }
    const uint8_t* scale_x = x + rows * kRowBytes;
    for (int64_t j = 0; j < tiles; ++j) {
      const float* factors = floats + (j * stride + b) * kFloats * kTileRows;
      typename R::Float factor[kFloats];
      for (int f = 0; f < kFloats; ++f) factor[f] = R::load_floats(factors + f * kTileRows);
      for (int64_t t = 0; t < rows; ++t) {
        float* sum = sums + (t * 2 + j) * kTileRows;
        typename R::Float acc = R::load_floats(sum);
        const typename R::Float sx = R::broadcast_float(scale_x + 4 * t);
        for (int g = 0; g < n_scales; ++g) {
          const typename R::Int dot = R::load(reinterpret_cast<const uint8_t*>(dots[g][j][t]));
          acc = R::multiply_add(R::to_float(dot), R::multiply(factor[g], sx), acc);
        }
        for (int s = 0; s < kOffsets; ++s) {
          acc = R::multiply_add(factor[n_scales + s], R::broadcast_float(scale_x + 4 * (rows * (1 + s) + t)), acc);
        }
        R::store_floats(sum, acc);
      }
    }
    x += 4 * row_dwords<S>(kOffsets) * rows;
  }
}

template <class R>
PanelKernel tile_kernel_for(const PanelFormat& format) {
  if (format.scales == 2) return {gather_rows<TileLines<R, 2>>, multiply_byte_tiles<R, 2, 2>, 8, 8, R::kPanelRows};
  return {gather_rows<TileLines<R, 1>>, multiply_byte_tiles<R, 1, 1>, 8, 8, R::kPanelRows};
}

}  // namespace
}  // namespace kbench
