// What the packing of every block type shares: places in lines, and the loop over a matrix.
#pragma once
#include <cstring>

#include "blocks.h"
#include "matrix.h"
#include "pack_vectors.h"
#include "packed_layout.h"

namespace kbench {

// Four rows' share of line `line`: rows row .. row + 3.
static inline void put(uint8_t* lines, int64_t line, int64_t row, Words rows) {
  store_words(lines + line * kLineBytes + 4 * row, rows);
}

// The float16 at `offset` of each of four blocks.
static inline void put_halves(uint8_t* halves, int64_t row, const uint8_t* const* blocks, int64_t offset) {
  for (int r = 0; r < 4; ++r) std::memcpy(halves + 2 * (row + r), blocks[r] + offset, sizeof(half_bits));
}

// Byte i of four rows' words goes to place `row` of the i-th of four lists of 16 bytes, `stride` bytes apart.
static inline void put_bytes(uint8_t* lists, int64_t stride, int64_t row, Words rows) {
  const Words bytes = transpose_bytes(rows);
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = bytes[i];
    std::memcpy(lists + i * stride + row, &word, sizeof word);
  }
}

// 16 bytes of nibbles at `offset` of each block, already paired as (i, 16 + i).
static inline void put_nibbles(uint8_t* lines, int64_t row, const uint8_t* const* blocks, int64_t offset) {
  Words v[4];
  load_transposed(blocks, offset, v);
  for (int l = 0; l < 4; ++l) put(lines, l, row, v[l]);
}

// How far ahead of the blocks in use each row is asked for: 16 rows are more streams than a CPU's own prefetcher follows.
// Measured on Zen 3, 4096 x 5120 from memory: Q6_K 2.5 to 3.4 GB/s a thread, Q4_K 2.9 to 3.8; 512 and 1024 bytes gain
// less.
constexpr int64_t kAheadBytes = 256;

// Tiles [tile_begin, tile_end) of a matrix, see pack_tiles(). Pack::pack(blocks, tile, count, i, row) writes the i-th of
// `count` blocks of the four rows from `row` on. A file aligns tensors, not blocks: they are read by memcpy only.
template <class Pack>
static void pack_blocks(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                        int64_t tile_end) {
  constexpr int64_t kBytes = sizeof(typename Pack::Block);
  static constexpr uint8_t kZeros[kBytes] = {};  // rows past the end: a block whose weights are 0
  const int64_t blocks = k / block_elements(format), row_bytes = blocks * kBytes;
  const int64_t tile_bytes = packed_tile_bytes(format, k);
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    uint8_t* tile = out + t * tile_bytes;
    std::memset(tile + tile_bytes - kLineBytes, 0, kLineBytes);  // the padding behind a plane of scales
    const uint8_t* row[kTileRows];
    int64_t step[kTileRows];
    for (int64_t r = 0; r < kTileRows; ++r) {
      const bool real = t * kTileRows + r < n;
      row[r] = real ? raw + (t * kTileRows + r) * row_bytes : kZeros;
      step[r] = real ? kBytes : 0;
    }
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t r = 0; r < kTileRows; r += 4) {
        Pack::pack(row + r, tile, blocks, block, r);
        for (int64_t i = r; i < r + 4; ++i) {
          for (int64_t line = 0; line < kBytes; line += kLineBytes) __builtin_prefetch(row[i] + kAheadBytes + line);
          row[i] += step[i];
        }
      }
    }
  }
}

// By the size of the format's blocks: 1 weight, 32 weights, 256 weights.
void pack_floats(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                 int64_t tile_end);
void pack_small_blocks(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                       int64_t tile_end);
void pack_super_blocks(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                       int64_t tile_end);

}  // namespace kbench
