// Packing of the formats with blocks of 32 weights.
#include <cstddef>
#include <stdexcept>

#include "pack.h"

namespace kbench {
namespace {

using Blocks = const uint8_t* const*;

struct PackQ4_0 {
  using Block = BlockQ4_0;
  static void pack(Blocks b, uint8_t* tile, int64_t count, int64_t block, int64_t row) {
    put_nibbles(tile + block * kNibbleBlockBytes, row, b, offsetof(Block, q));
    put_halves(tile + count * kNibbleBlockBytes + block * kHalvesBytes, row, b, offsetof(Block, d));
  }
};

struct PackQ4_1 {
  using Block = BlockQ4_1;
  static void pack(Blocks b, uint8_t* tile, int64_t, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ4_1BlockBytes;
    put_halves(p, row, b, offsetof(Block, d));
    put_halves(p + kHalvesBytes, row, b, offsetof(Block, m));
    put_nibbles(p + 2 * kHalvesBytes, row, b, offsetof(Block, q));
  }
};

struct PackQ5_0 {
  using Block = BlockQ5_0;
  static void pack(Blocks b, uint8_t* tile, int64_t count, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kFiveBitBlockBytes;
    put_nibbles(p, row, b, offsetof(Block, q));
    put(p + kNibbleBlockBytes, 0, row, spread_bits(load_column(b, offsetof(Block, high))));
    put_halves(tile + count * kFiveBitBlockBytes + block * kHalvesBytes, row, b, offsetof(Block, d));
  }
};

struct PackQ5_1 {
  using Block = BlockQ5_1;
  static void pack(Blocks b, uint8_t* tile, int64_t, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ5_1BlockBytes;
    put_halves(p, row, b, offsetof(Block, d));
    put_halves(p + kHalvesBytes, row, b, offsetof(Block, m));
    put_nibbles(p + 2 * kHalvesBytes, row, b, offsetof(Block, q));
    put(p + 2 * kHalvesBytes + kNibbleBlockBytes, 0, row, spread_bits(load_column(b, offsetof(Block, high))));
  }
};

struct PackQ8_0 {
  using Block = BlockQ8_0;
  static void pack(Blocks b, uint8_t* tile, int64_t count, int64_t block, int64_t row) {
    // Four lines of bytes are read as four lines of nibbles are: 16 bytes a row.
    put_nibbles(tile + block * kByteBlockBytes, row, b, offsetof(Block, q));
    put_nibbles(tile + block * kByteBlockBytes + 4 * kLineBytes, row, b, offsetof(Block, q) + 16);
    put_halves(tile + count * kByteBlockBytes + block * kHalvesBytes, row, b, offsetof(Block, d));
  }
};

struct PackIQ4_NL {
  using Block = BlockIQ4_NL;
  static void pack(Blocks b, uint8_t* tile, int64_t count, int64_t block, int64_t row) {
    put_nibbles(tile + block * kNibbleBlockBytes, row, b, offsetof(Block, q));
    put_halves(tile + count * kNibbleBlockBytes + block * kHalvesBytes, row, b, offsetof(Block, d));
  }
};

struct PackMXFP4 {
  using Block = BlockMXFP4;
  static void pack(Blocks b, uint8_t* tile, int64_t count, int64_t block, int64_t row) {
    put_nibbles(tile + block * kNibbleBlockBytes, row, b, offsetof(Block, q));
    uint8_t* exponents = tile + count * kNibbleBlockBytes + block * kExponentsBytes + row;
    for (int r = 0; r < 4; ++r) exponents[r] = b[r][offsetof(Block, e)];
  }
};

}  // namespace

void pack_small_blocks(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                       int64_t tile_end) {
  switch (format) {
    case Format::Q4_0: return pack_blocks<PackQ4_0>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::Q4_1: return pack_blocks<PackQ4_1>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::Q5_0: return pack_blocks<PackQ5_0>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::Q5_1: return pack_blocks<PackQ5_1>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::Q8_0: return pack_blocks<PackQ8_0>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::IQ4_NL: return pack_blocks<PackIQ4_NL>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::MXFP4: return pack_blocks<PackMXFP4>(format, raw, n, k, out, tile_begin, tile_end);
    default: throw std::invalid_argument("not a format with blocks of 32");
  }
}

}  // namespace kbench
