// GGUF rows to packed tiles. Plain loops over whole dwords: packing runs at the speed of reading the file.
#include "pack.h"

#include <stdexcept>

namespace kbench {
namespace {

template <class Word>
void pack_words(const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_bytes, int64_t tile_begin,
                int64_t tile_end) {
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    uint8_t* tile = out + t * tile_bytes;
    const int64_t rows = n - t * kTileRows < kTileRows ? n - t * kTileRows : kTileRows;
    if (rows < kTileRows) std::memset(tile, 0, static_cast<size_t>(tile_bytes));
    else std::memset(tile + tile_bytes - kLineBytes, 0, kLineBytes);
    constexpr int64_t kWords = kLineBytes / static_cast<int64_t>(sizeof(Word));  // a line of each row at a time
    for (int64_t first = 0; first < k; first += kWords) {
      const int64_t last = first + kWords < k ? first + kWords : k;
      for (int64_t row = 0; row < rows; ++row) {
        const uint8_t* in = raw + (t * kTileRows + row) * k * static_cast<int64_t>(sizeof(Word));
        for (int64_t column = first; column < last; ++column) {
          std::memcpy(tile + (column * kTileRows + row) * static_cast<int64_t>(sizeof(Word)),
                      in + column * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
        }
      }
    }
  }
}

}  // namespace

void pack_tiles(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                int64_t tile_end) {
  const int64_t tile_bytes = packed_tile_bytes(format, k);
  if (format == Format::F32) return pack_words<uint32_t>(raw, n, k, out, tile_bytes, tile_begin, tile_end);
  if (block_elements(format) == 1) return pack_words<uint16_t>(raw, n, k, out, tile_bytes, tile_begin, tile_end);
  if (block_elements(format) == kBlock) return pack_small_blocks(format, raw, n, k, out, tile_begin, tile_end);
  pack_super_blocks(format, raw, n, k, out, tile_begin, tile_end);
}

}  // namespace kbench
