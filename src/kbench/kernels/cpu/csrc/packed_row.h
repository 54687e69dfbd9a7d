// Reads one row out of a packed tile, a block of 32 weights at a time: for the scalar kernels and for unpack_row().
// Not for ISA folders: the inline functions here belong to the base instruction set.
#pragma once
#include <cstring>

#include "half.h"
#include "matrix.h"
#include "packed_layout.h"

namespace kbench {

// w[i] = scale[i / 16] * q[i] + offset
struct RowBlock {
  int8_t q[32];
  float scale[2];
  float offset;
};

static inline uint32_t read_dword(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

static inline float read_half(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return float_from_half(bits);
}

// The four bytes of `dword`, each less `subtract`.
static inline void write_quad(int8_t* q, uint32_t dword, int subtract) {
  for (int j = 0; j < 4; ++j) q[j] = static_cast<int8_t>(static_cast<int>((dword >> (8 * j)) & 0xff) - subtract);
}

static inline void read_nibble_block(const uint8_t* lines, int64_t row, int subtract, int8_t* q) {
  for (int l = 0; l < 4; ++l) {
    const uint32_t dword = read_dword(lines + l * kLineBytes + 4 * row);
    write_quad(q + 4 * l, dword & 0x0f0f0f0fu, subtract);
    write_quad(q + 16 + 4 * l, (dword >> 4) & 0x0f0f0f0fu, subtract);
  }
}

static inline void read_byte_block(const uint8_t* lines, int64_t row, int8_t* q) {
  for (int l = 0; l < 8; ++l) write_quad(q + 4 * l, read_dword(lines + l * kLineBytes + 4 * row), 0);
}

static inline void read_six_bit_group(const uint8_t* lines, int64_t row, int8_t* q) {
  const uint32_t a = read_dword(lines + 4 * row);
  const uint32_t b = read_dword(lines + kLineBytes + 4 * row);
  const uint32_t c = read_dword(lines + 2 * kLineBytes + 4 * row);
  write_quad(q, (a & 0x0f0f0f0fu) | (c << 4 & 0x30303030u), 32);
  write_quad(q + 4, (b & 0x0f0f0f0fu) | (c << 2 & 0x30303030u), 32);
  write_quad(q + 8, (a >> 4 & 0x0f0f0f0fu) | (c & 0x30303030u), 32);
  write_quad(q + 12, (b >> 4 & 0x0f0f0f0fu) | (c >> 2 & 0x30303030u), 32);
}

// Block `block` of row `row` (0..15) of a tile of k columns in a quantised format.
template <Format format>
static inline RowBlock read_row_block(const uint8_t* tile, int64_t k, int64_t block, int64_t row) {
  static_assert(format == Format::Q4_0 || format == Format::Q4_1 || format == Format::Q8_0 || format == Format::Q4_K ||
                    format == Format::Q6_K,
                "quantised formats");
  RowBlock out;
  out.offset = 0.0f;
  if constexpr (format == Format::Q4_0) {
    read_nibble_block(tile + block * kNibbleBlockBytes, row, 8, out.q);
    out.scale[0] = read_half(tile + k / kBlock * kNibbleBlockBytes + block * kHalvesBytes + 2 * row);
    out.scale[1] = out.scale[0];
  } else if constexpr (format == Format::Q4_1) {
    const uint8_t* p = tile + block * kQ4_1BlockBytes;
    read_nibble_block(p + 2 * kHalvesBytes, row, 0, out.q);
    out.scale[0] = out.scale[1] = read_half(p + 2 * row);
    out.offset = read_half(p + kHalvesBytes + 2 * row);
  } else if constexpr (format == Format::Q8_0) {
    read_byte_block(tile + block * kByteBlockBytes, row, out.q);
    out.scale[0] = read_half(tile + k / kBlock * kByteBlockBytes + block * kHalvesBytes + 2 * row);
    out.scale[1] = out.scale[0];
  } else if constexpr (format == Format::Q4_K) {
    const uint8_t* p = tile + block / 8 * kQ4_KBytes;
    const uint8_t* scales = p + kQ4_KScales + block % 8 * kQ4_KScalesBytes;
    read_nibble_block(p + kQ4_KQuants + block % 8 * kNibbleBlockBytes, row, 0, out.q);
    out.scale[0] = out.scale[1] = read_half(p + 2 * row) * static_cast<float>(scales[row]);
    out.offset = -(read_half(p + kHalvesBytes + 2 * row) * static_cast<float>(scales[kTileRows + row]));
  } else {
    const uint8_t* p = tile + block / 8 * kQ6_KBytes;
    const float d = read_half(tile + k / kSuperBlock * kQ6_KBytes + block / 8 * kHalvesBytes + 2 * row);
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t group = block % 8 * 2 + half;
      read_six_bit_group(p + kQ6_KQuants + group * kQ6_KGroupBytes, row, out.q + 16 * half);
      out.scale[half] = d * static_cast<float>(static_cast<int8_t>(p[group * kQ6_KScalesBytes + row]));
    }
  }
  return out;
}

// Weight `column` of row `row` of a tile in a float format.
template <Format format>
static inline float read_weight(const uint8_t* tile, int64_t column, int64_t row) {
  if constexpr (format == Format::F32) {
    return float_from_bits(read_dword(tile + (column * kTileRows + row) * 4));
  } else {
    uint16_t bits;
    std::memcpy(&bits, tile + (column * kTileRows + row) * 2, sizeof bits);
    return format == Format::F16 ? float_from_half(bits) : float_from_bfloat16(bits);
  }
}

}  // namespace kbench
