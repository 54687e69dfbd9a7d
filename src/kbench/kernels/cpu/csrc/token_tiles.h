// What the kernels of all ISAs share around a register tile: groups of tokens, and rows written out.
// Everything sits in an unnamed namespace: each ISA's file gets its own copy, compiled with its own flags.
#pragma once
#include <cstdint>
#include <cstring>

#include "matmul_table.h"

namespace kbench {
namespace {

inline int64_t clamp_to(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

inline void store_rows(const float* values, const float* bias, int64_t rows, float* y) {
  if (rows == kTileRows && bias == nullptr) {
    std::memcpy(y, values, sizeof(float) * kTileRows);
  } else if (rows == kTileRows) {  // the usual case on its own: a loop of constant length becomes two or four vectors
    for (int64_t row = 0; row < kTileRows; ++row) y[row] = values[row] + bias[row];
  } else {
    for (int64_t row = 0; row < rows; ++row) y[row] = values[row] + (bias == nullptr ? 0.0f : bias[row]);
  }
}

// Writes tile `i` of tokens [token, token_end) from sums[(t - token) * planes + plane]; a token's planes are added.
inline void store_tile(float (*sums)[kTileRows], int64_t token, int64_t token_end, int64_t planes,
                       const PackedMatrix& w, int64_t i, const float* bias, float* y, int64_t ldy) {
  const int64_t row = i * kTileRows;
  const int64_t rows = w.n - row < kTileRows ? w.n - row : kTileRows;
  for (int64_t t = token; t < token_end; ++t) {
    float* values = sums[(t - token) * planes];
    if (planes == 2) {
      for (int64_t r = 0; r < kTileRows; ++r) values[r] += values[kTileRows + r];
    }
    store_rows(values, bias == nullptr ? nullptr : bias + row, rows, y + t * ldy + row);
  }
}

// Writes tile `i`, the j-th of a panel of kTiles, of tokens [token, token_end); `add`: to what stands there.
template <int64_t kTiles>
inline void store_panel_tile(float (*sums)[kTiles][kTileRows], int64_t j, int64_t token, int64_t token_end,
                             int64_t planes, const PackedMatrix& w, int64_t i, bool add, const float* bias, float* y,
                             int64_t ldy) {
  const int64_t row = i * kTileRows;
  const int64_t rows = w.n - row < kTileRows ? w.n - row : kTileRows;
  for (int64_t t = token; t < token_end; ++t) {
    float* values = sums[(t - token) * planes][j];
    float* to = y + t * ldy + row;
    if (planes == 2) {
      for (int64_t r = 0; r < kTileRows; ++r) values[r] += sums[(t - token) * planes + 1][j][r];
    }
    if (add) {
      for (int64_t r = 0; r < rows; ++r) values[r] += to[r];
    }
    store_rows(values, add || bias == nullptr ? nullptr : bias + row, rows, to);
  }
}

// Kernel::run<T>(tile, a, row, ahead, out) multiplies one tile with rows [row, row + T) of the activations,
// T <= Kernel::kMaxRows, and writes out[t][row]. Every T from 1 up is a function of its own, so that its accumulators
// are registers.
template <class Kernel, int T>
inline void run_tile(int64_t rows, const uint8_t* tile, const Activation& a, int64_t row, int64_t ahead,
                     float (*out)[kTileRows]) {
  if (rows == T) {
    Kernel::template run<T>(tile, a, row, ahead, out);
  } else if constexpr (T > 1) {
    run_tile<Kernel, T - 1>(rows, tile, a, row, ahead, out);
  }
}

template <class Kernel>
void multiply_tiles(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin, int64_t tile_end,
                    const float* bias, float* y, int64_t ldy, const MatmulParameters& p) {
  alignas(64) float out[Kernel::kMaxRows][kTileRows];
  const int64_t planes = Kernel::kQuantised ? a.planes : 1;
  // Equal groups: 9 tokens with at most 4 at once are 3 + 3 + 3, not 4 + 4 + 1, whose last pass would cost most.
  const int64_t limit = p.token_tile > 0 && p.token_tile < Kernel::kMaxRows ? p.token_tile : Kernel::kMaxRows;
  const int64_t most = limit / planes > 0 ? limit / planes : 1;
  const int64_t groups = (tokens + most - 1) / most;
  for (int64_t i = tile_begin; i < tile_end; ++i) {
    const uint8_t* tile = w.data + i * w.tile_bytes;
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t token = tokens * group / groups, token_end = tokens * (group + 1) / groups;
      run_tile<Kernel, Kernel::kMaxRows>((token_end - token) * planes, tile, a, token * planes, p.prefetch_bytes, out);
      store_tile(out, token, token_end, planes, w, i, bias, y, ldy);
    }
  }
}

}  // namespace
}  // namespace kbench
