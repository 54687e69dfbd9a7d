// BF16 weights times activations rounded to bfloat16, for many tokens: panels as in ../matmul/panel.h, of another
// shape.
//
// The instructions multiply pairs: a dword is two neighbouring columns of a row.
//   panel, for each tile         pair line: a dword for each of 16 rows; k is filled up with zeros to whole blocks
//   chunk, for a group of T rows block of 16 pairs (32 columns) of each term, in the order M::place
//
// Weights are multiplied as they are. Activations are one term, x rounded to 8 bits, or two: what rounding took from the
// first is rounded once more, and x = high + low but for 2^-16 of itself.
//
// A multiplier M:
//   kRows                       the most activation rows at a time
//   place(term, pair, t, T)     where a dword of a block of T rows stands
//   multiply(tiles, rows, terms, lines, blocks, x, sums)
//                               sums[t][tile][row] += blocks of the panels of `tiles` tiles, which are
//                               kBf16PanelPairs lines apart
#pragma once
#include <cstring>

#include "../packed_layout.h"
#include "../token_tiles.h"
#include "intrinsics.h"

namespace kbench {
namespace {

constexpr int64_t kBf16BlockPairs = 16;
// 256 columns of two tiles are 16 KiB of the first-level cache.
constexpr int64_t kBf16PanelPairs = 128;
constexpr int64_t kBf16Tiles = 2;
constexpr int64_t kMostBf16Rows = 256;
constexpr int64_t kMostBf16ChunkBytes = 512 * 1024;
// A multiplier may read rows past those of the last group.
constexpr int64_t kBf16Slack = 16 * kLineBytes;

// Pairs [first, first + pairs) of a tile.
inline void unpack_bf16(const uint8_t* tile, int64_t k, int64_t first, int64_t pairs, int64_t ahead, uint8_t* lines) {
  alignas(64) uint16_t order[32];  // 0 16 1 17 ...: columns of 16 rows each become pairs
  for (uint16_t i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
  const __m512i to_pairs = _mm512_load_si512(order);
  for (int64_t pair = first; pair < first + pairs; ++pair, lines += kLineBytes) {
    const uint8_t* columns = tile + pair * kLineBytes;
    __m512i line = _mm512_setzero_si512();
    if (2 * pair + 1 < k) {
      __builtin_prefetch(columns + ahead);
      line = _mm512_load_si512(columns);
    } else if (2 * pair < k) {  // the second half of the line is no column
      line = _mm512_inserti64x4(line, _mm256_load_si256(reinterpret_cast<const __m256i*>(columns)), 0);
    }
    _mm512_store_si512(lines, _mm512_permutexvar_epi16(to_pairs, line));
  }
}

// Rows [row, row + rows) of x, blocks [first, first + blocks).
template <class M>
void gather_bf16(const Activation& a, int64_t row, int64_t rows, int64_t first, int64_t blocks, int terms,
                 uint8_t* out) {
  for (int64_t block = 0; block < blocks; ++block, out += terms * rows * kLineBytes) {
    const int64_t column = (first + block) * 2 * kBf16BlockPairs;
    for (int64_t t = 0; t < rows; ++t) {
      alignas(64) float x[2 * kBf16BlockPairs] = {};
      const int64_t columns = a.k - column < 2 * kBf16BlockPairs ? a.k - column : 2 * kBf16BlockPairs;
      std::memcpy(x, a.x + (row + t) * a.ldx + column, static_cast<size_t>(columns) * sizeof(float));
      for (int term = 0; term < terms; ++term) {
        alignas(64) uint32_t pairs[kBf16BlockPairs];
        for (int half = 0; half < 2; ++half) {
          const __m512 value = _mm512_load_ps(x + 16 * half);
          const __m256i rounded = round_to_bf16(value);
          _mm256_store_si256(reinterpret_cast<__m256i*>(pairs + 8 * half), rounded);
          const __m512 back = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
          _mm512_store_ps(x + 16 * half, _mm512_sub_ps(value, back));
        }
        for (int pair = 0; pair < kBf16BlockPairs; ++pair) {
          std::memcpy(out + 4 * M::place(term, pair, static_cast<int>(t), static_cast<int>(rows)), pairs + pair, 4);
        }
      }
    }
  }
}

template <class M>
void multiply_bf16_panels(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin,
                          int64_t tile_end, const float* bias, float* y, int64_t ldy, const MatmulParameters& p,
                          int terms) {
  constexpr int64_t kBlocks = kBf16PanelPairs / kBf16BlockPairs;
  alignas(64) uint8_t lines[kBf16Tiles * kBf16PanelPairs * kLineBytes];
  alignas(64) float sums[kMostBf16Rows][kBf16Tiles][kTileRows];
  alignas(64) uint8_t chunk_data[kMostBf16ChunkBytes + kBf16Slack];
  const int64_t all_blocks = (w.k + 2 * kBf16BlockPairs - 1) / (2 * kBf16BlockPairs);
  const int64_t block_bytes = terms * kLineBytes;
  const int64_t most = p.token_tile > 0 && p.token_tile < M::kRows ? p.token_tile : M::kRows;
  const int64_t range_most = kMostBf16ChunkBytes / block_bytes / kBlocks * kBlocks;
  for (int64_t range = 0; range < all_blocks; range += range_most) {  // one, but for very long rows
    const int64_t range_blocks = all_blocks - range < range_most ? all_blocks - range : range_most;
    const int64_t row_bytes = range_blocks * block_bytes;
    const int64_t fit = clamp_to(kMostBf16ChunkBytes / row_bytes, 1, kMostBf16Rows);
    const int64_t chunk_rows = clamp_to(p.chunk_bytes / row_bytes, most < fit ? most : fit, fit);
    const int64_t chunks = (tokens + chunk_rows - 1) / chunk_rows;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t token = tokens * chunk / chunks, rows = tokens * (chunk + 1) / chunks - token;
      const int64_t groups = (rows + most - 1) / most;
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t r = rows * group / groups, n = rows * (group + 1) / groups - r;
        gather_bf16<M>(a, token + r, n, range, range_blocks, terms, chunk_data + r * row_bytes);
      }
      for (int64_t i = tile_begin; i < tile_end; i += kBf16Tiles) {
        const int64_t tiles = tile_end - i < kBf16Tiles ? 1 : kBf16Tiles;
        std::memset(sums, 0, static_cast<size_t>(rows) * sizeof sums[0]);
        for (int64_t block = 0; block < range_blocks; block += kBlocks) {
          const int64_t blocks = range_blocks - block < kBlocks ? range_blocks - block : kBlocks;
          for (int64_t j = 0; j < tiles; ++j) {
            unpack_bf16(w.data + (i + j) * w.tile_bytes, w.k, (range + block) * kBf16BlockPairs,
                        blocks * kBf16BlockPairs, p.prefetch_bytes, lines + j * kBf16PanelPairs * kLineBytes);
          }
          for (int64_t group = 0; group < groups; ++group) {
            const int64_t r = rows * group / groups, n = rows * (group + 1) / groups - r;
            M::multiply(tiles, n, terms, lines, blocks, chunk_data + r * row_bytes + block * block_bytes * n, sums[r][0]);
          }
        }
        for (int64_t j = 0; j < tiles; ++j) {
          store_panel_tile<kBf16Tiles>(sums, j, token, token + rows, 1, w, i + j, range > 0, bias, y, ldy);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kbench
