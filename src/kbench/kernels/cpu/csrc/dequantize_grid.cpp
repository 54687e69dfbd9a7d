#include "dequantize_grid.h"

#include <cstring>

#include "grids.h"
#include "half.h"
#include "rare_blocks.h"

namespace kbench {
namespace {

template <class Block>
Block read(const uint8_t* bytes) {
  Block b;
  std::memcpy(&b, bytes, sizeof b);
  return b;
}

template <class Word>
Word word_at(const uint8_t* bytes, int index) {
  Word value;
  std::memcpy(&value, bytes + index * static_cast<int>(sizeof value), sizeof value);
  return value;
}

int nibble(const uint8_t* bytes, int index) { return bytes[index / 2] >> (4 * (index % 2)) & 15; }

// The signs of 8 weights, a bit each, from an index of 7 bits: the eighth makes their number even.
int signs_of(uint32_t index) {
  uint32_t parity = index ^ index >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return static_cast<int>(index | (parity & 1) << 7);
}

// The `count` weights at `point`, scaled and signed: two roundings, in the order of GGUF's definition.
void put_signed(const int8_t* point, int count, float scale, int signs, float* out) {
  for (int i = 0; i < count; ++i) out[i] = scale * static_cast<float>(point[i]) * (signs >> i & 1 ? -1.0f : 1.0f);
}

void put_shifted(const int8_t* point, float scale, float shift, float* out) {
  for (int i = 0; i < 8; ++i) out[i] = scale * (static_cast<float>(point[i]) + shift);
}

constexpr float kShift = 0.125f;

}  // namespace

void dequantize_iq2_xxs(const uint8_t* block, float* out) {
  const auto b = read<BlockIQ2_XXS>(block);
  const float d = float_from_half(b.d);
  const int8_t* points = grid(Format::IQ2_XXS);
  for (int part = 0; part < 8; ++part) {
    const auto packed = word_at<uint32_t>(b.q, 2 * part + 1);
    const float scale = d * (0.5f + static_cast<float>(packed >> 28)) * 0.25f;
    for (int i = 0; i < 4; ++i) {
      put_signed(points + 8 * b.q[8 * part + i], 8, scale, signs_of(packed >> (7 * i) & 127), out + 32 * part + 8 * i);
    }
  }
}

void dequantize_iq2_xs(const uint8_t* block, float* out) {
  const auto b = read<BlockIQ2_XS>(block);
  const float d = float_from_half(b.d);
  const int8_t* points = grid(Format::IQ2_XS);
  for (int i = 0; i < 32; ++i) {
    const float scale = d * (0.5f + static_cast<float>(nibble(b.scales, i / 2))) * 0.25f;
    const auto q = word_at<uint16_t>(b.q, i);
    put_signed(points + 8 * (q & 511), 8, scale, signs_of(q >> 9), out + 8 * i);
  }
}

void dequantize_iq2_s(const uint8_t* block, float* out) {
  const auto b = read<BlockIQ2_S>(block);
  const float d = float_from_half(b.d);
  const int8_t* points = grid(Format::IQ2_S);
  for (int i = 0; i < 32; ++i) {
    const float scale = d * (0.5f + static_cast<float>(nibble(b.scales, i / 2))) * 0.25f;
    const int index = b.q[i] | (b.high[i / 4] >> (2 * (i % 4)) & 3) << 8;
    put_signed(points + 8 * index, 8, scale, b.signs[i], out + 8 * i);
  }
}

void dequantize_iq3_xxs(const uint8_t* block, float* out) {
  const auto b = read<BlockIQ3_XXS>(block);
  const float d = float_from_half(b.d);
  const int8_t* points = grid(Format::IQ3_XXS);
  for (int i = 0; i < 64; ++i) {
    const auto packed = word_at<uint32_t>(b.signs, i / 8);
    const float scale = d * (0.5f + static_cast<float>(packed >> 28)) * 0.5f;
    const int signs = signs_of(packed >> (7 * (i % 8 / 2)) & 127) >> (4 * (i % 2));
    put_signed(points + 4 * b.q[i], 4, scale, signs, out + 4 * i);
  }
}

void dequantize_iq3_s(const uint8_t* block, float* out) {
  const auto b = read<BlockIQ3_S>(block);
  const float d = float_from_half(b.d);
  const int8_t* points = grid(Format::IQ3_S);
  for (int i = 0; i < 64; ++i) {
    const float scale = d * static_cast<float>(1 + 2 * nibble(b.scales, i / 8));
    const int index = b.q[i] | (b.high[i / 8] >> (i % 8) & 1) << 8;
    put_signed(points + 4 * index, 4, scale, b.signs[i / 2] >> (4 * (i % 2)), out + 4 * i);
  }
}

void dequantize_iq1_s(const uint8_t* block, float* out) {
  const auto b = read<BlockIQ1_S>(block);
  const float d = float_from_half(b.d);
  const int8_t* points = grid(Format::IQ1_S);
  for (int i = 0; i < 32; ++i) {
    const auto high = word_at<uint16_t>(b.high, i / 4);
    const float scale = d * static_cast<float>(2 * (high >> 12 & 7) + 1);
    const int index = b.q[i] | (high >> (3 * (i % 4)) & 7) << 8;
    put_shifted(points + 8 * index, scale, high & 0x8000 ? -kShift : kShift, out + 8 * i);
  }
}

void dequantize_iq1_m(const uint8_t* block, float* out) {
  const auto b = read<BlockIQ1_M>(block);
  uint32_t d_bits = 0;
  for (int i = 0; i < 4; ++i) d_bits |= static_cast<uint32_t>(word_at<uint16_t>(b.scales, i) >> 12) << (4 * i);
  const float d = float_from_half(static_cast<uint16_t>(d_bits));
  const int8_t* points = grid(Format::IQ1_M);
  for (int i = 0; i < 32; ++i) {
    const int sc = word_at<uint16_t>(b.scales, i / 8) >> (3 * (i / 2 % 4)) & 7;
    const int high = nibble(b.high, i);
    const float scale = d * static_cast<float>(2 * sc + 1);
    put_shifted(points + 8 * (b.q[i] | (high & 7) << 8), scale, high & 8 ? -kShift : kShift, out + 8 * i);
  }
}

}  // namespace kbench
