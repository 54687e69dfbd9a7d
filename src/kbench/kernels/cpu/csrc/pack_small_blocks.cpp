// Packing of the formats with blocks of 32 weights.
#include <stdexcept>

#include "pack.h"

namespace kbench {
namespace {

struct PackQ4_0 {
  using Block = BlockQ4_0;
  static void pack(const Block& b, uint8_t* tile, int64_t blocks, int64_t block, int64_t row) {
    put_nibbles(tile + block * kNibbleBlockBytes, row, b.q);
    put_half(tile + blocks * kNibbleBlockBytes + block * kHalvesBytes, row, b.d);
  }
};

struct PackQ4_1 {
  using Block = BlockQ4_1;
  static void pack(const Block& b, uint8_t* tile, int64_t, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ4_1BlockBytes;
    put_half(p, row, b.d);
    put_half(p + kHalvesBytes, row, b.m);
    put_nibbles(p + 2 * kHalvesBytes, row, b.q);
  }
};

// The 32 top bits of a row's block: bit 4 * q + j of `high` becomes bit q of byte j.
void put_top_bits(uint8_t* line, int64_t row, uint32_t high) {
  uint32_t out = 0;
  for (int q = 0; q < 8; ++q) {
    // Four neighbouring bits to the lowest bits of four bytes: multiplied, bit j lands at 8 * j among others.
    out |= ((high >> (4 * q) & 15u) * 0x00204081u & 0x01010101u) << q;
  }
  put(line, 0, row, out);
}

struct PackQ5_0 {
  using Block = BlockQ5_0;
  static void pack(const Block& b, uint8_t* tile, int64_t blocks, int64_t block, int64_t row) {
    put_nibbles(tile + block * kFiveBitBlockBytes, row, b.q);
    put_top_bits(tile + block * kFiveBitBlockBytes + kNibbleBlockBytes, row, dword_at(b.high, 0));
    put_half(tile + blocks * kFiveBitBlockBytes + block * kHalvesBytes, row, b.d);
  }
};

struct PackQ5_1 {
  using Block = BlockQ5_1;
  static void pack(const Block& b, uint8_t* tile, int64_t, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ5_1BlockBytes;
    put_half(p, row, b.d);
    put_half(p + kHalvesBytes, row, b.m);
    put_nibbles(p + 2 * kHalvesBytes, row, b.q);
    put_top_bits(p + 2 * kHalvesBytes + kNibbleBlockBytes, row, dword_at(b.high, 0));
  }
};

struct PackQ8_0 {
  using Block = BlockQ8_0;
  static void pack(const Block& b, uint8_t* tile, int64_t blocks, int64_t block, int64_t row) {
    for (int64_t l = 0; l < 8; ++l) put(tile + block * kByteBlockBytes, l, row, dword_at(b.q, l));
    put_half(tile + blocks * kByteBlockBytes + block * kHalvesBytes, row, b.d);
  }
};

struct PackIQ4_NL {
  using Block = BlockIQ4_NL;
  static void pack(const Block& b, uint8_t* tile, int64_t blocks, int64_t block, int64_t row) {
    put_nibbles(tile + block * kNibbleBlockBytes, row, b.q);
    put_half(tile + blocks * kNibbleBlockBytes + block * kHalvesBytes, row, b.d);
  }
};

struct PackMXFP4 {
  using Block = BlockMXFP4;
  static void pack(const Block& b, uint8_t* tile, int64_t blocks, int64_t block, int64_t row) {
    put_nibbles(tile + block * kNibbleBlockBytes, row, b.q);
    tile[blocks * kNibbleBlockBytes + block * kExponentsBytes + row] = b.e;
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
