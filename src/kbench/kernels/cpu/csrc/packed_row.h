// Reads one row out of a packed tile, a block of 32 weights at a time: for the scalar kernels and for unpack_row().
// Not for ISA folders: the inline functions here belong to the base instruction set.
#pragma once
#include <cstring>

#include "half.h"
#include "matrix.h"
#include "packed_layout.h"

namespace kbench {

// w[i] = scale[i / 16] * q[i] + offset[i / 16]. Formats without an offset have -0: the one number that changes nothing
// when it is added, not even the sign of a zero.
struct RowBlock {
  int8_t q[32];
  float scale[2];
  float offset[2] = {-0.0f, -0.0f};
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

// Nibbles that are numbers of `values`.
static inline void read_value_block(const uint8_t* lines, int64_t row, const int8_t* values, int8_t* q) {
  read_nibble_block(lines, row, 0, q);
  for (int64_t i = 0; i < kBlock; ++i) q[i] = values[q[i]];
}

// Adds 2^shift to the weights of a block whose bit in the bit line is set.
static inline void add_top_bits(const uint8_t* line, int64_t row, int shift, int8_t* q) {
  for (int64_t i = 0; i < kBlock; ++i) {
    const int bit = line[4 * row + i % 4] >> (i / 4) & 1;
    q[i] = static_cast<int8_t>(q[i] + (bit << shift));
  }
}

static inline void read_five_bit_block(const uint8_t* lines, int64_t row, int subtract, int8_t* q) {
  read_nibble_block(lines, row, subtract, q);
  add_top_bits(lines + kNibbleBlockBytes, row, 4, q);
}

static inline void read_crumb_group(const uint8_t* line, int64_t row, int subtract, int8_t* q) {
  const uint32_t dword = read_dword(line + 4 * row);
  for (int c = 0; c < 4; ++c) write_quad(q + 4 * c, dword >> (2 * c) & 0x03030303u, subtract);
}

// 2^(e - 128): MXFP4's exponent and the half of its doubled values. The two smallest are subnormal.
static inline float float_from_exponent(uint8_t e) {
  return float_from_bits(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}

static inline void set_scale(RowBlock& b, float scale) { b.scale[0] = b.scale[1] = scale; }
static inline void set_offset(RowBlock& b, float offset) { b.offset[0] = b.offset[1] = offset; }

static inline float signed_byte(const uint8_t* p) { return static_cast<float>(static_cast<int8_t>(*p)); }

// Block `block` of row `row` (0..15) of a tile of k columns in a quantised format.
template <Format format>
static inline RowBlock read_row_block(const uint8_t* tile, int64_t k, int64_t block, int64_t row) {
  RowBlock out;
  const int64_t blocks = k / kBlock, super_blocks = k / kSuperBlock;
  const int64_t super_block = block / 8, part = block % 8;
  // The scale of this block, or of its super-block, in the plane behind `count` blocks of `bytes` each.
  const auto plane_half = [&](int64_t count, int64_t bytes, int64_t index) {
    return read_half(tile + count * bytes + index * kHalvesBytes + 2 * row);
  };
  if constexpr (format == Format::Q4_0) {
    read_nibble_block(tile + block * kNibbleBlockBytes, row, 8, out.q);
    set_scale(out, plane_half(blocks, kNibbleBlockBytes, block));
  } else if constexpr (format == Format::IQ4_NL) {
    read_value_block(tile + block * kNibbleBlockBytes, row, kIq4Values, out.q);
    set_scale(out, plane_half(blocks, kNibbleBlockBytes, block));
  } else if constexpr (format == Format::MXFP4) {
    read_value_block(tile + block * kNibbleBlockBytes, row, kMxfp4Values, out.q);
    set_scale(out, float_from_exponent(tile[blocks * kNibbleBlockBytes + block * kExponentsBytes + row]));
  } else if constexpr (format == Format::Q5_0) {
    read_five_bit_block(tile + block * kFiveBitBlockBytes, row, 16, out.q);
    set_scale(out, plane_half(blocks, kFiveBitBlockBytes, block));
  } else if constexpr (format == Format::Q4_1 || format == Format::Q5_1) {
    const uint8_t* p = tile + block * (format == Format::Q4_1 ? kQ4_1BlockBytes : kQ5_1BlockBytes);
    set_scale(out, read_half(p + 2 * row));
    set_offset(out, read_half(p + kHalvesBytes + 2 * row));
    p += 2 * kHalvesBytes;
    if (format == Format::Q4_1) read_nibble_block(p, row, 0, out.q);
    else read_five_bit_block(p, row, 0, out.q);
  } else if constexpr (format == Format::Q8_0) {
    read_byte_block(tile + block * kByteBlockBytes, row, out.q);
    set_scale(out, plane_half(blocks, kByteBlockBytes, block));
  } else if constexpr (format == Format::Q2_K) {
    const uint8_t* p = tile + super_block * kQ2_KBytes;
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t group = 2 * part + half;
      const uint8_t scales = p[kQ2_KScales + group * kQ2_KScalesBytes + row];
      read_crumb_group(p + kQ2_KQuants + group * kQ2_KGroupBytes, row, 0, out.q + 16 * half);
      out.scale[half] = read_half(p + 2 * row) * static_cast<float>(scales & 15);
      out.offset[half] = -(read_half(p + kHalvesBytes + 2 * row) * static_cast<float>(scales >> 4));
    }
  } else if constexpr (format == Format::Q3_K) {
    const uint8_t* p = tile + super_block * kQ3_KBytes;
    const uint8_t* lines = p + kQ3_KQuants + part * kQ3_KBlockBytes;
    const float d = plane_half(super_blocks, kQ3_KBytes, super_block);
    for (int64_t half = 0; half < 2; ++half) {
      read_crumb_group(lines + half * kLineBytes, row, 4, out.q + 16 * half);
      out.scale[half] = d * signed_byte(p + (2 * part + half) * kQ3_KScalesBytes + row);
    }
    add_top_bits(lines + 2 * kLineBytes, row, 2, out.q);
  } else if constexpr (format == Format::Q4_K || format == Format::Q5_K) {
    const uint8_t* p = tile + super_block * (format == Format::Q4_K ? kQ4_KBytes : kQ5_KBytes);
    const uint8_t* scales = p + kQ4_KScales + part * kQ4_KScalesBytes;
    if (format == Format::Q4_K) read_nibble_block(p + kQ4_KQuants + part * kNibbleBlockBytes, row, 0, out.q);
    else read_five_bit_block(p + kQ4_KQuants + part * kFiveBitBlockBytes, row, 0, out.q);
    set_scale(out, read_half(p + 2 * row) * static_cast<float>(scales[row]));
    set_offset(out, -(read_half(p + kHalvesBytes + 2 * row) * static_cast<float>(scales[kTileRows + row])));
  } else if constexpr (format == Format::IQ4_XS) {
    const uint8_t* p = tile + super_block * kIQ4_XSBytes;
    read_value_block(p + kIQ4_XSQuants + part * kNibbleBlockBytes, row, kIq4Values, out.q);
    set_scale(out, plane_half(super_blocks, kIQ4_XSBytes, super_block) *
                       signed_byte(p + part * kIQ4_XSScalesBytes + row));
  } else {
    static_assert(format == Format::Q6_K, "quantised formats");
    const uint8_t* p = tile + super_block * kQ6_KBytes;
    const float d = plane_half(super_blocks, kQ6_KBytes, super_block);
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t group = 2 * part + half;
      read_six_bit_group(p + kQ6_KQuants + group * kQ6_KGroupBytes, row, out.q + 16 * half);
      out.scale[half] = d * signed_byte(p + group * kQ6_KScalesBytes + row);
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
