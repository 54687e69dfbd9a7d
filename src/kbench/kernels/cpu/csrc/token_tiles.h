// The loops around a register tile, the same for every ISA: chunks of tokens, tiles of 16 rows, groups of tokens.
// Everything sits in an unnamed namespace: each ISA's file gets its own copy, compiled with its own flags.
#pragma once
#include <cstdint>
#include <cstring>

#include "matmul_table.h"

namespace kbench {
namespace {

// How far ahead of the weights in use the next ones are asked for. Decode multiplies a line in about the time that
// memory takes to send it, so the loads that fit into the reorder window are too few: 2 KiB (32 lines) cover 100 ns at
// 20 GB/s and are a fraction of L1. Measured on Zen 3, one thread: 20 to 40 % faster than without for 4- and 6-bit
// weights, which is the speed of plain reading; 512 bytes and 8 KiB gain half of it or less. Reading past the end is
// harmless: a prefetch never faults.
constexpr int64_t kPrefetchBytes = 2048;

inline void prefetch_ahead(const uint8_t* line) { __builtin_prefetch(line + kPrefetchBytes); }

// Kernel::run<T>(tile, a, token, out) multiplies one tile with rows [token, token + T) of the activations,
// T <= Kernel::kMaxTokens, and writes out[t][row]; an activation takes Kernel::kActivationBytes. Every T from 1 up is a
// function of its own, so that its accumulators are registers. A token with two planes of quantised activations is two
// such rows, whose results are added here.
template <class Kernel, int T>
inline void run_tile(int64_t tokens, const uint8_t* tile, const Activation& a, int64_t token, float (*out)[kTileRows]) {
  if (tokens == T) {
    Kernel::template run<T>(tile, a, token, out);
  } else if constexpr (T > 1) {
    run_tile<Kernel, T - 1>(tokens, tile, a, token, out);
  }
}

inline void store_rows(const float* values, const float* bias, int64_t rows, float* y) {
  if (rows == kTileRows) {  // the usual case on its own: a loop of constant length becomes two or four vectors
    for (int64_t row = 0; row < kTileRows; ++row) y[row] = values[row] + (bias == nullptr ? 0.0f : bias[row]);
  } else {
    for (int64_t row = 0; row < rows; ++row) y[row] = values[row] + (bias == nullptr ? 0.0f : bias[row]);
  }
}

// Bytes of activations that are multiplied with every tile before the next ones are looked at. They are read once per
// tile, so they should come from L2 (512 KiB to 2 MiB on today's CPUs); smaller chunks would read the weights from
// memory more often. Measured on Zen 3 with 4-bit weights, 1020 tokens of 5120 columns and 510 of 12288: 7 to 17 %
// faster than all tokens at once, the same from 128 KiB to 1 MiB.
constexpr int64_t kChunkBytes = 512 * 1024;

template <class Kernel>
void multiply_tiles(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin, int64_t tile_end,
                    const float* bias, float* y, int64_t ldy) {
  alignas(64) float out[Kernel::kMaxTokens][kTileRows];
  const int64_t planes = Kernel::kActivationBytes == sizeof(int8_t) ? a.planes : 1;
  // Equal groups: 9 tokens with at most 4 at once are 3 + 3 + 3, not 4 + 4 + 1, whose last pass would cost most.
  const int64_t most = Kernel::kMaxTokens / planes;
  const int64_t groups = (tokens + most - 1) / most;
  const int64_t group_bytes = w.k * Kernel::kActivationBytes * planes * most;
  const int64_t chunk_groups = group_bytes < kChunkBytes ? kChunkBytes / group_bytes : 1;
  const int64_t chunks = (groups + chunk_groups - 1) / chunk_groups;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t i = tile_begin; i < tile_end; ++i) {
      const uint8_t* tile = w.data + i * w.tile_bytes;
      const int64_t row = i * kTileRows;
      const int64_t rows = w.n - row < kTileRows ? w.n - row : kTileRows;
      for (int64_t group = groups * chunk / chunks; group < groups * (chunk + 1) / chunks; ++group) {
        const int64_t token = tokens * group / groups, token_end = tokens * (group + 1) / groups;
        run_tile<Kernel, Kernel::kMaxTokens>((token_end - token) * planes, tile, a, token * planes, out);
        for (int64_t t = token; t < token_end; ++t) {
          float* sums = out[(t - token) * planes];
          if (planes == 2) {
            for (int64_t r = 0; r < kTileRows; ++r) sums[r] += sums[kTileRows + r];
          }
          store_rows(sums, bias == nullptr ? nullptr : bias + row, rows, y + t * ldy + row);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kbench
