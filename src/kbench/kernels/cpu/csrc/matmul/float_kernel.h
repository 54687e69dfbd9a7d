// F32, F16, BF16: exact products, float32 accumulation. A column of a tile is one value for each of 16 rows.
#pragma once
#include "../packed_layout.h"
#include "../token_tiles.h"
#include "../unroll.h"

namespace kbench {
namespace {

template <class R>
struct F32 {
  static constexpr int64_t kColumnBytes = 64;
  static typename R::Float load(const uint8_t* column, int h) { return R::singles(column + 4 * R::kRows * h); }
};

template <class R>
struct F16 {
  static constexpr int64_t kColumnBytes = 32;
  static typename R::Float load(const uint8_t* column, int h) { return R::halves(column + 2 * R::kRows * h); }
};

template <class R>
struct BF16 {
  static constexpr int64_t kColumnBytes = 32;
  static typename R::Float load(const uint8_t* column, int h) { return R::bfloats(column + 2 * R::kRows * h); }
};

// acc[t][h] += column * x[t]
template <class R, class W, int T>
inline void add_column(const uint8_t* column, const float* x, int64_t ldx,
                       typename R::Float (*acc)[kTileRows / R::kRows]) {
  constexpr int H = kTileRows / R::kRows;
  typename R::Float w[H];
  KBENCH_UNROLL
  for (int h = 0; h < H; ++h) w[h] = W::load(column, h);
  KBENCH_UNROLL
  for (int t = 0; t < T; ++t) {
    const typename R::Float value = R::floats(x[t * ldx]);
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) acc[t][h] = R::multiply_add(w[h], value, acc[t][h]);
  }
}

template <class R, class W>
struct FloatLineKernel {
  static constexpr int kMaxRows = R::kFloatRows;
  static constexpr bool kQuantised = false;
  template <int T>
  static inline void run(const uint8_t* tile, const Activation& a, int64_t token, int64_t ahead,
                         float (*out)[kTileRows]) {
    constexpr int H = kTileRows / R::kRows;
    // A multiply-add takes 4 cycles and two start per cycle: 8 chains, or few tokens wait for their own results.
    constexpr int kChains = T * H >= 8 ? 1 : T * H >= 4 ? 2 : 4;
    const float* x = a.x + token * a.ldx;
    typename R::Float acc[kChains][T][H];
    KBENCH_UNROLL
    for (int c = 0; c < kChains; ++c) {
      KBENCH_UNROLL
      for (int t = 0; t < T; ++t) {
        KBENCH_UNROLL
        for (int h = 0; h < H; ++h) acc[c][t][h] = R::zero();
      }
    }
    int64_t column = 0;
    for (; column + kChains <= a.k; column += kChains) {
      KBENCH_UNROLL
      for (int c = 0; c < kChains; ++c) {
        const uint8_t* at = tile + (column + c) * W::kColumnBytes;
        if (c * W::kColumnBytes % kLineBytes == 0) __builtin_prefetch(at + ahead);
        add_column<R, W, T>(at, x + column + c, a.ldx, acc[c]);
      }
    }
    for (; column < a.k; ++column) add_column<R, W, T>(tile + column * W::kColumnBytes, x + column, a.ldx, acc[0]);
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) {
      KBENCH_UNROLL
      for (int h = 0; h < H; ++h) {
        KBENCH_UNROLL
        for (int c = 1; c < kChains; ++c) acc[0][t][h] = R::add(acc[0][t][h], acc[c][t][h]);
        R::store_floats(out[t] + R::kRows * h, acc[0][t][h]);
      }
    }
  }
};

// Columns of a panel of floats: 256 are 16 KiB of the first-level cache.
constexpr int64_t kFloatPanelColumns = 256;
constexpr int64_t kMostFloatChunkRows = 128;

// sums[t] += `columns` columns, of float32, times T tokens.
template <class R, int T>
inline void multiply_columns(int64_t rows, const uint8_t* panel, int64_t columns, const float* x, int64_t ldx,
                             float (*sums)[kTileRows]) {
  if constexpr (T > 1) {
    if (rows < T) return multiply_columns<R, T - 1>(rows, panel, columns, x, ldx, sums);
  }
  constexpr int H = kTileRows / R::kRows;
  typename R::Float acc[T][H];
  KBENCH_UNROLL
  for (int t = 0; t < T; ++t) {
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) acc[t][h] = R::load_floats(sums[t] + h * R::kRows);
  }
  for (int64_t column = 0; column < columns; ++column) {
    add_column<R, F32<R>, T>(panel + column * F32<R>::kColumnBytes, x + column, ldx, acc);
  }
  KBENCH_UNROLL
  for (int t = 0; t < T; ++t) {
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) R::store_floats(sums[t] + h * R::kRows, acc[t][h]);
  }
}

// Many tokens: as panel_kernel.h does it. The panel is float32; a tile of F32 is its own panel.
template <class R, class W>
void multiply_float_panels(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin,
                           int64_t tile_end, const float* bias, float* y, int64_t ldy, const MatmulParameters& p) {
  constexpr int H = kTileRows / R::kRows;
  constexpr bool kOwnPanel = W::kColumnBytes != F32<R>::kColumnBytes;
  alignas(64) float panel[kOwnPanel ? kFloatPanelColumns : 1][kTileRows];
  alignas(64) float sums[kMostFloatChunkRows][kTileRows];
  const int64_t row_bytes = w.k * static_cast<int64_t>(sizeof(float));
  const int64_t most = p.token_tile > 0 && p.token_tile < R::kFloatRows ? p.token_tile : R::kFloatRows;
  const int64_t chunk_rows = clamp_to(p.chunk_bytes / row_bytes, most, kMostFloatChunkRows);
  const int64_t chunks = (tokens + chunk_rows - 1) / chunk_rows;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t first = tokens * chunk / chunks, end = tokens * (chunk + 1) / chunks;
    const int64_t rows = end - first, groups = (rows + most - 1) / most;
    for (int64_t i = tile_begin; i < tile_end; ++i) {
      const uint8_t* tile = w.data + i * w.tile_bytes;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t row = 0; row < kTileRows; ++row) sums[r][row] = 0.0f;
      }
      for (int64_t column = 0; column < w.k; column += kFloatPanelColumns) {
        const int64_t columns = w.k - column < kFloatPanelColumns ? w.k - column : kFloatPanelColumns;
        const uint8_t* lines = tile + column * W::kColumnBytes;
        if constexpr (kOwnPanel) {
          for (int64_t c = 0; c < columns; ++c) {
            if (c % 2 == 0) __builtin_prefetch(lines + c * W::kColumnBytes + p.prefetch_bytes);
            for (int h = 0; h < H; ++h) R::store_floats(panel[c] + h * R::kRows, W::load(lines + c * W::kColumnBytes, h));
          }
          lines = reinterpret_cast<const uint8_t*>(panel);
        }
        for (int64_t group = 0; group < groups; ++group) {
          const int64_t r = rows * group / groups, r_end = rows * (group + 1) / groups;
          multiply_columns<R, R::kFloatRows>(r_end - r, lines, columns, a.x + (first + r) * a.ldx + column, a.ldx,
                                             sums + r);
        }
      }
      store_tile(sums, first, end, 1, w, i, bias, y, ldy);
    }
  }
}

// Up to one group of tokens in the order of memory, more in panels.
template <class R, class W>
void multiply_floats(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin, int64_t tile_end,
                     const float* bias, float* y, int64_t ldy, const MatmulParameters& p) {
  if (tokens <= R::kFloatRows) {
    multiply_tiles<FloatLineKernel<R, W>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy, p);
  } else {
    multiply_float_panels<R, W>(w, a, tokens, tile_begin, tile_end, bias, y, ldy, p);
  }
}

}  // namespace
}  // namespace kbench
