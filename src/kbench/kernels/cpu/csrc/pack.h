// What the packing of every block type shares: dwords into lines, and the loop over a matrix.
// Blocks are copied out of the file with memcpy: GGUF aligns tensors, not the rows of every block type.
#pragma once
#include <cstring>

#include "blocks.h"
#include "matrix.h"
#include "packed_layout.h"

namespace kbench {

static inline void put(uint8_t* lines, int64_t line, int64_t row, uint32_t dword) {
  std::memcpy(lines + line * kLineBytes + 4 * row, &dword, sizeof dword);
}

static inline void put_half(uint8_t* halves, int64_t row, half_bits value) {
  std::memcpy(halves + 2 * row, &value, sizeof value);
}

static inline uint32_t dword_at(const void* bytes, int64_t index) {
  uint32_t value;
  std::memcpy(&value, static_cast<const uint8_t*>(bytes) + 4 * index, sizeof value);
  return value;
}

// One row's 16 bytes of nibbles, already paired as (i, 16 + i).
static inline void put_nibbles(uint8_t* lines, int64_t row, const void* nibbles) {
  for (int64_t l = 0; l < 4; ++l) put(lines, l, row, dword_at(nibbles, l));
}

// Tiles [tile_begin, tile_end) of a matrix, see pack_tiles(). Pack::pack(block, tile, blocks, i, row) writes block i
// of `blocks` of a row.
template <class Pack>
static void pack_blocks(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                 int64_t tile_end) {
  using Block = typename Pack::Block;
  const int64_t blocks = k / block_elements(format), row_bytes = blocks * block_bytes(format);
  const int64_t tile_bytes = packed_tile_bytes(format, k);
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    uint8_t* tile = out + t * tile_bytes;
    const int64_t rows = n - t * kTileRows < kTileRows ? n - t * kTileRows : kTileRows;
    // Rows past the end are zero weights, and so is the padding behind a plane of scales.
    if (rows < kTileRows) std::memset(tile, 0, static_cast<size_t>(tile_bytes));
    else std::memset(tile + tile_bytes - kLineBytes, 0, kLineBytes);
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t row = 0; row < rows; ++row) {
        Block b;
        std::memcpy(&b, raw + (t * kTileRows + row) * row_bytes + block * static_cast<int64_t>(sizeof b), sizeof b);
        Pack::pack(b, tile, blocks, block, row);
      }
    }
  }
}


// By the size of the format's blocks: 32 weights, 256 weights.
void pack_small_blocks(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                       int64_t tile_end);
void pack_super_blocks(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                       int64_t tile_end);

}  // namespace kbench
