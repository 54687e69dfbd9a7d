// Packing of F32, F16, BF16: a column of 16 rows is one line or half a line.
#include <stdexcept>

#include "pack.h"

namespace kbench {
namespace {

// The 16 rows of a tile; those past the end are zeros, which are read again and again.
struct TileRows {
  const uint8_t* row[kTileRows];
  TileRows(const uint8_t* raw, int64_t n, int64_t row_bytes, int64_t tile, const uint8_t* zeros) {
    for (int64_t r = 0; r < kTileRows; ++r) {
      row[r] = tile * kTileRows + r < n ? raw + (tile * kTileRows + r) * row_bytes : zeros;
      step[r] = row[r] == zeros ? 0 : 1;
    }
  }
  const uint8_t* at(int64_t r, int64_t offset) const { return row[r] + step[r] * offset; }

 private:
  int64_t step[kTileRows];
};

// 8 columns of 8 rows: vectors of 16-bit numbers, column by column.
void transpose_shorts(Shorts* v) {
  Shorts a[8], b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = KBENCH_SHUFFLE(v[i], v[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
    a[2 * i + 1] = KBENCH_SHUFFLE(v[i], v[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
  }
  for (int i = 0; i < 4; ++i) {
    b[2 * i] = KBENCH_SHUFFLE(a[i], a[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
    b[2 * i + 1] = KBENCH_SHUFFLE(a[i], a[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
  }
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = KBENCH_SHUFFLE(b[i], b[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
    v[2 * i + 1] = KBENCH_SHUFFLE(b[i], b[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
  }
}

// Columns [begin, end) of a tile one number at a time: what is left behind the last whole vector.
template <class Word>
void pack_columns(const TileRows& rows, int64_t begin, int64_t end, uint8_t* tile) {
  constexpr int64_t kSize = sizeof(Word);
  for (int64_t column = begin; column < end; ++column) {
    for (int64_t r = 0; r < kTileRows; ++r) {
      std::memcpy(tile + (column * kTileRows + r) * kSize, rows.at(r, column * kSize), sizeof(Word));
    }
  }
}

constexpr uint8_t kZeros[16] = {};

void pack_words(const uint8_t* raw, int64_t n, int64_t k, uint8_t* tile, int64_t t) {
  const TileRows rows(raw, n, 4 * k, t, kZeros);
  const int64_t whole = k / 4 * 4;
  for (int64_t column = 0; column < whole; column += 4) {
    for (int64_t r = 0; r < kTileRows; r += 4) {
      Words v[4];
      for (int i = 0; i < 4; ++i) v[i] = load_words(rows.at(r + i, 4 * column));
      transpose(v);
      for (int i = 0; i < 4; ++i) store_words(tile + (column + i) * kLineBytes + 4 * r, v[i]);
    }
  }
  pack_columns<uint32_t>(rows, whole, k, tile);
}

void pack_shorts(const uint8_t* raw, int64_t n, int64_t k, uint8_t* tile, int64_t t) {
  const TileRows rows(raw, n, 2 * k, t, kZeros);
  const int64_t whole = k / 8 * 8;
  for (int64_t column = 0; column < whole; column += 8) {
    for (int64_t r = 0; r < kTileRows; r += 8) {
      Shorts v[8];
      for (int i = 0; i < 8; ++i) v[i] = (Shorts)load_words(rows.at(r + i, 2 * column));
      transpose_shorts(v);
      for (int i = 0; i < 8; ++i) store_words(tile + (column + i) * kHalvesBytes + 2 * r, (Words)v[i]);
    }
  }
  pack_columns<uint16_t>(rows, whole, k, tile);
}

}  // namespace

void pack_floats(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                 int64_t tile_end) {
  const int64_t tile_bytes = packed_tile_bytes(format, k);
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    uint8_t* tile = out + t * tile_bytes;
    std::memset(tile + tile_bytes - kLineBytes, 0, kLineBytes);  // the padding behind an odd number of columns
    if (format == Format::F32) pack_words(raw, n, k, tile, t);
    else pack_shorts(raw, n, k, tile, t);
  }
}

}  // namespace kbench
