// Packing of the formats with super-blocks of 256 weights.
#include <stdexcept>

#include "pack.h"

namespace kbench {
namespace {

// Six-bit scale and minimum of block `i` of eight: the first four stand in the low bits of bytes 0-3 and 4-7; the
// other four have their low nibbles in bytes 8-11 and their two high bits on top of the first four.
void q4_k_scale_min(const uint8_t* s, int i, uint8_t* scale, uint8_t* minimum) {
  if (i < 4) {
    *scale = s[i] & 63;
    *minimum = s[i + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((s[i + 4] & 15) | (s[i - 4] >> 6) << 4);
    *minimum = static_cast<uint8_t>((s[i + 4] >> 4) | (s[i] >> 6) << 4);
  }
}

// The 128 bytes of a super-block's nibbles: GGUF pairs weight i with 32 + i, the packed form pairs it with 16 + i.
// Blocks of 32 lie `stride` bytes from each other.
void put_super_nibbles(uint8_t* lines, int64_t stride, int64_t row, const uint8_t* q) {
  constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0fu;
  for (int64_t pair = 0; pair < 4; ++pair) {
    uint64_t in[4], first[2], second[2];
    std::memcpy(in, q + 32 * pair, sizeof in);
    for (int i = 0; i < 2; ++i) {
      first[i] = (in[i] & kLow) | (in[i + 2] & kLow) << 4;
      second[i] = (in[i] >> 4 & kLow) | (in[i + 2] & ~kLow);
    }
    put_nibbles(lines + 2 * pair * stride, row, first);
    put_nibbles(lines + (2 * pair + 1) * stride, row, second);
  }
}

// The top bits of block `part` of eight: bit `part` of 32 bytes, one a weight.
void put_super_top_bits(uint8_t* line, int64_t row, const uint8_t* high, int part) {
  uint32_t out = 0;
  for (int q = 0; q < 8; ++q) out |= (dword_at(high, q) >> part & 0x01010101u) << q;
  put(line, 0, row, out);
}

// Two bits of each of 16 weights: 128 weights share 32 bytes of `q`, 32 of them a place within a byte.
void put_crumbs(uint8_t* line, int64_t row, const uint8_t* q, int group) {
  const uint8_t* low = q + 32 * (group / 8) + 16 * (group % 2);
  uint32_t out = 0;
  for (int c = 0; c < 4; ++c) out |= (dword_at(low, c) >> (2 * (group % 8 / 2)) & 0x03030303u) << (2 * c);
  put(line, 0, row, out);
}

struct PackQ2_K {
  using Block = BlockQ2_K;
  static void pack(const Block& b, uint8_t* tile, int64_t, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ2_KBytes;
    put_half(p, row, b.d);
    put_half(p + kHalvesBytes, row, b.dmin);
    for (int group = 0; group < 16; ++group) {
      p[kQ2_KScales + group * kQ2_KScalesBytes + row] = b.scales[group];
      put_crumbs(p + kQ2_KQuants + group * kQ2_KGroupBytes, row, b.q, group);
    }
  }
};

// Six-bit scale of group `i` of 16, less 32: its low bits are a nibble of the first eight bytes (low nibbles first),
// its high bits two bits of the last four (the lowest two first).
uint8_t q3_k_scale(const uint8_t* s, int i) {
  const int low = s[i % 8] >> (i < 8 ? 0 : 4) & 15, high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
  return static_cast<uint8_t>((low | high << 4) - 32);
}

struct PackQ3_K {
  using Block = BlockQ3_K;
  static void pack(const Block& b, uint8_t* tile, int64_t blocks, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ3_KBytes;
    put_half(tile + blocks * kQ3_KBytes + block * kHalvesBytes, row, b.d);
    for (int part = 0; part < 8; ++part) {
      uint8_t* lines = p + kQ3_KQuants + part * kQ3_KBlockBytes;
      for (int half = 0; half < 2; ++half) {
        p[(2 * part + half) * kQ3_KScalesBytes + row] = q3_k_scale(b.scales, 2 * part + half);
        put_crumbs(lines + half * kLineBytes, row, b.q, 2 * part + half);
      }
      put_super_top_bits(lines + 2 * kLineBytes, row, b.high, part);
    }
  }
};

// d, dmin, sc and m: Q4_K and Q5_K begin alike, in the file and packed.
void put_k_scales(uint8_t* p, int64_t row, half_bits d, half_bits dmin, const uint8_t* packed) {
  put_half(p, row, d);
  put_half(p + kHalvesBytes, row, dmin);
  for (int i = 0; i < 8; ++i) {
    uint8_t* scales = p + kQ4_KScales + i * kQ4_KScalesBytes;
    q4_k_scale_min(packed, i, scales + row, scales + kTileRows + row);
  }
}

struct PackQ4_K {
  using Block = BlockQ4_K;
  static void pack(const Block& b, uint8_t* tile, int64_t, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ4_KBytes;
    put_k_scales(p, row, b.d, b.dmin, b.scales);
    put_super_nibbles(p + kQ4_KQuants, kNibbleBlockBytes, row, b.q);
  }
};

struct PackQ5_K {
  using Block = BlockQ5_K;
  static void pack(const Block& b, uint8_t* tile, int64_t, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ5_KBytes;
    put_k_scales(p, row, b.d, b.dmin, b.scales);
    put_super_nibbles(p + kQ4_KQuants, kFiveBitBlockBytes, row, b.q);
    for (int part = 0; part < 8; ++part) {
      put_super_top_bits(p + kQ4_KQuants + part * kFiveBitBlockBytes + kNibbleBlockBytes, row, b.high, part);
    }
  }
};

struct PackQ6_K {
  using Block = BlockQ6_K;
  static void pack(const Block& b, uint8_t* tile, int64_t blocks, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ6_KBytes;
    put_half(tile + blocks * kQ6_KBytes + block * kHalvesBytes, row, b.d);
    for (int group = 0; group < 16; ++group) {
      p[group * kQ6_KScalesBytes + row] = static_cast<uint8_t>(b.scales[group]);
      // Weights 16 * group ..: 128 of them share 64 bytes of `low` and 32 of `high`; 32 share a place within a byte.
      const int part = group / 8, quarter = group % 8 / 2, half = group % 2;
      const uint8_t* low = b.low + 64 * part + 32 * (quarter % 2) + 16 * half;
      const uint8_t* high = b.high + 32 * part + 16 * half;
      uint32_t nibbles[4], bits[4];
      for (int i = 0; i < 4; ++i) {
        nibbles[i] = dword_at(low, i) >> (quarter < 2 ? 0 : 4) & 0x0f0f0f0fu;
        bits[i] = dword_at(high, i) >> (2 * quarter) & 0x03030303u;
      }
      uint8_t* lines = p + kQ6_KQuants + group * kQ6_KGroupBytes;
      put(lines, 0, row, nibbles[0] | nibbles[2] << 4);
      put(lines, 1, row, nibbles[1] | nibbles[3] << 4);
      put(lines, 2, row, bits[0] | bits[1] << 2 | bits[2] << 4 | bits[3] << 6);
    }
  }
};

struct PackIQ4_XS {
  using Block = BlockIQ4_XS;
  static void pack(const Block& b, uint8_t* tile, int64_t blocks, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kIQ4_XSBytes;
    put_half(tile + blocks * kIQ4_XSBytes + block * kHalvesBytes, row, b.d);
    for (int part = 0; part < 8; ++part) {
      const int low = b.scales_low[part / 2] >> (4 * (part % 2)) & 15;
      const int high = b.scales_high[part / 4] >> (2 * (part % 4)) & 3;
      p[part * kIQ4_XSScalesBytes + row] = static_cast<uint8_t>((low | high << 4) - 32);
      put_nibbles(p + kIQ4_XSQuants + part * kNibbleBlockBytes, row, b.q + 16 * part);
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
