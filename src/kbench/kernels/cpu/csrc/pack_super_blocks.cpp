// Packing of the formats with super-blocks of 256 weights.
#include <cstddef>
#include <stdexcept>

#include "pack.h"

namespace kbench {
namespace {

using Blocks = const uint8_t* const*;

constexpr uint32_t kLowNibbles = 0x0f0f0f0fu;

// d, dmin and the six-bit sc and m of eight blocks: Q4_K and Q5_K begin alike, in the file and packed. The first four
// stand in the low bits of bytes 0-3 (sc) and 4-7 (m); the other four have their low nibbles in bytes 8-11 and their
// two high bits on top of the first four.
void put_k_scales(uint8_t* p, int64_t row, Blocks b) {
  put_halves(p, row, b, offsetof(BlockQ4_K, d));
  put_halves(p + kHalvesBytes, row, b, offsetof(BlockQ4_K, dmin));
  const Words sc = load_column(b, offsetof(BlockQ4_K, scales)), m = load_column(b, offsetof(BlockQ4_K, scales) + 4);
  const Words last = load_column(b, offsetof(BlockQ4_K, scales) + 8);
  uint8_t* scales = p + kQ4_KScales;
  put_bytes(scales, kQ4_KScalesBytes, row, sc & 0x3f3f3f3fu);
  put_bytes(scales + kTileRows, kQ4_KScalesBytes, row, m & 0x3f3f3f3fu);
  scales += 4 * kQ4_KScalesBytes;
  put_bytes(scales, kQ4_KScalesBytes, row, (last & kLowNibbles) | (sc >> 2 & 0x30303030u));
  put_bytes(scales + kTileRows, kQ4_KScalesBytes, row, (last >> 4 & kLowNibbles) | (m >> 2 & 0x30303030u));
}

// 128 bytes of nibbles at `offset`: GGUF pairs weight i with 32 + i, the packed form pairs it with 16 + i. Packed blocks
// of 32 lie `stride` bytes from each other.
void put_super_nibbles(uint8_t* lines, int64_t stride, int64_t row, Blocks b, int64_t offset) {
  for (int64_t pair = 0; pair < 4; ++pair) {
    Words first[4], second[4];
    load_transposed(b, offset + 32 * pair, first);
    load_transposed(b, offset + 32 * pair + 16, second);
    for (int l = 0; l < 4; ++l) {
      transpose_nibbles(first[l], second[l]);
      put(lines + 2 * pair * stride, l, row, first[l]);
      put(lines + (2 * pair + 1) * stride, l, row, second[l]);
    }
  }
}

// The top bits of eight blocks of 32 at `offset`: bit p of 32 bytes, one a weight, are block p's. Lines `stride` apart.
void put_super_bits(uint8_t* line, int64_t stride, int64_t row, Blocks b, int64_t offset) {
  Words v[8];
  load_transposed(b, offset, v);
  load_transposed(b, offset + 16, v + 4);
  transpose_bits(v);
  for (int part = 0; part < 8; ++part) put(line + part * stride, 0, row, v[part]);
}

// Pairs of bits of 8 groups of 16 weights: 32 bytes at `offset`, in which groups 2q and 2q + 1 have bits 2q and 2q + 1
// of 16 bytes each. line_of(group) is where the group's line is.
template <class LineOf>
void put_crumbs(int64_t row, Blocks b, int64_t offset, const LineOf& line_of) {
  for (int half = 0; half < 2; ++half) {
    Words v[4];
    load_transposed(b, offset + 16 * half, v);
    transpose_crumbs(v);
    for (int quarter = 0; quarter < 4; ++quarter) put(line_of(2 * quarter + half), 0, row, v[quarter]);
  }
}

struct PackQ2_K {
  using Block = BlockQ2_K;
  static void pack(Blocks b, uint8_t* tile, int64_t, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ2_KBytes;
    put_halves(p, row, b, offsetof(Block, d));
    put_halves(p + kHalvesBytes, row, b, offsetof(Block, dmin));
    for (int i = 0; i < 4; ++i) {
      put_bytes(p + kQ2_KScales + 4 * i * kQ2_KScalesBytes, kQ2_KScalesBytes, row,
                load_column(b, offsetof(Block, scales) + 4 * i));
    }
    for (int part = 0; part < 2; ++part) {
      uint8_t* lines = p + kQ2_KQuants + 8 * part * kQ2_KGroupBytes;
      put_crumbs(row, b, offsetof(Block, q) + 32 * part, [=](int group) { return lines + group * kQ2_KGroupBytes; });
    }
  }
};

struct PackQ3_K {
  using Block = BlockQ3_K;
  static void pack(Blocks b, uint8_t* tile, int64_t count, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ3_KBytes;
    put_halves(tile + count * kQ3_KBytes + block * kHalvesBytes, row, b, offsetof(Block, d));
    // Six-bit sc, less 32: the low nibbles are those of eight bytes (low nibbles first), the high bits pairs of bits of
    // four bytes.
    Words low[4], high = load_column(b, offsetof(Block, scales) + 8);
    low[0] = load_column(b, offsetof(Block, scales));
    low[1] = load_column(b, offsetof(Block, scales) + 4);
    low[2] = low[0] >> 4;
    low[3] = low[1] >> 4;
    for (int i = 0; i < 4; ++i) {
      const Words sc = (low[i] & kLowNibbles) | (high >> (2 * i) & 0x03030303u) << 4;
      const Octets shifted = (Octets)sc - 32;
      put_bytes(p + 4 * i * kQ3_KScalesBytes, kQ3_KScalesBytes, row, (Words)shifted);
    }
    for (int part = 0; part < 2; ++part) {
      uint8_t* lines = p + kQ3_KQuants + 4 * part * kQ3_KBlockBytes;
      put_crumbs(row, b, offsetof(Block, q) + 32 * part,
                 [=](int group) { return lines + group / 2 * kQ3_KBlockBytes + group % 2 * kLineBytes; });
    }
    put_super_bits(p + kQ3_KQuants + 2 * kLineBytes, kQ3_KBlockBytes, row, b, offsetof(Block, high));
  }
};

struct PackQ4_K {
  using Block = BlockQ4_K;
  static void pack(Blocks b, uint8_t* tile, int64_t, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ4_KBytes;
    put_k_scales(p, row, b);
    put_super_nibbles(p + kQ4_KQuants, kNibbleBlockBytes, row, b, offsetof(Block, q));
  }
};

struct PackQ5_K {
  using Block = BlockQ5_K;
  static void pack(Blocks b, uint8_t* tile, int64_t, int64_t block, int64_t row) {
    static_assert(offsetof(Block, scales) == offsetof(BlockQ4_K, scales), "put_k_scales()");
    uint8_t* p = tile + block * kQ5_KBytes;
    put_k_scales(p, row, b);
    put_super_nibbles(p + kQ4_KQuants, kFiveBitBlockBytes, row, b, offsetof(Block, q));
    put_super_bits(p + kQ4_KQuants + kNibbleBlockBytes, kFiveBitBlockBytes, row, b, offsetof(Block, high));
  }
};

struct PackQ6_K {
  using Block = BlockQ6_K;
  static void pack(Blocks b, uint8_t* tile, int64_t count, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ6_KBytes;
    put_halves(tile + count * kQ6_KBytes + block * kHalvesBytes, row, b, offsetof(Block, d));
    for (int i = 0; i < 4; ++i) {
      put_bytes(p + 4 * i * kQ6_KScalesBytes, kQ6_KScalesBytes, row, load_column(b, offsetof(Block, scales) + 4 * i));
    }
    for (int part = 0; part < 2; ++part) {  // 128 weights share 64 bytes of `low` and 32 of `high`
      const auto group = [=](int quarter, int half) {
        return p + kQ6_KQuants + (8 * part + 2 * quarter + half) * kQ6_KGroupBytes;
      };
      for (int half = 0; half < 2; ++half) {
        for (int quarter = 0; quarter < 2; ++quarter) {
          // Weights 32 * quarter + 16 * half on in the low nibbles, those 64 further on in the high ones.
          Words v[4];
          load_transposed(b, offsetof(Block, low) + 64 * part + 32 * quarter + 16 * half, v);
          for (int line = 0; line < 2; ++line) {
            transpose_nibbles(v[line], v[line + 2]);
            put(group(quarter, half), line, row, v[line]);
            put(group(quarter + 2, half), line, row, v[line + 2]);
          }
        }
      }
      put_crumbs(row, b, offsetof(Block, high) + 32 * part,
                 [=](int i) { return group(i / 2, i % 2) + 2 * kLineBytes; });
    }
  }
};

struct PackIQ4_XS {
  using Block = BlockIQ4_XS;
  static void pack(Blocks b, uint8_t* tile, int64_t count, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kIQ4_XSBytes;
    put_halves(tile + count * kIQ4_XSBytes + block * kHalvesBytes, row, b, offsetof(Block, d));
    for (int r = 0; r < 4; ++r) {
      const uint8_t* low = b[r] + offsetof(Block, scales_low);
      const unsigned high = load_short(b[r] + offsetof(Block, scales_high));
      for (int part = 0; part < 8; ++part) {
        const unsigned sc = (low[part / 2] >> (4 * (part % 2)) & 15u) | (high >> (2 * part) & 3u) << 4;
        p[part * kIQ4_XSScalesBytes + row + r] = static_cast<uint8_t>(sc - 32);
      }
    }
    for (int part = 0; part < 8; ++part) {
      put_nibbles(p + kIQ4_XSQuants + part * kNibbleBlockBytes, row, b, offsetof(Block, q) + 16 * part);
    }
  }
};

}  // namespace

void pack_super_blocks(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                       int64_t tile_end) {
  switch (format) {
    case Format::Q2_K: return pack_blocks<PackQ2_K>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::Q3_K: return pack_blocks<PackQ3_K>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::Q4_K: return pack_blocks<PackQ4_K>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::Q5_K: return pack_blocks<PackQ5_K>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::Q6_K: return pack_blocks<PackQ6_K>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::IQ4_XS: return pack_blocks<PackIQ4_XS>(format, raw, n, k, out, tile_begin, tile_end);
    default: throw std::invalid_argument("not a format with blocks of 256");
  }
}

}  // namespace kbench
