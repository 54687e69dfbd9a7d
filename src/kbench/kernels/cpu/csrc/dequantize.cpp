#include "dequantize.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "dequantize_grid.h"
#include "half.h"
#include "packed_layout.h"
#include "rare_blocks.h"

namespace kbench {
namespace {

template <class Block>
Block read(const uint8_t* bytes) {
  Block b;
  std::memcpy(&b, bytes, sizeof b);
  return b;
}

void dequantize_f64(const uint8_t* block, float* out) { *out = static_cast<float>(read<double>(block)); }

// Five ternary digits in a byte: multiplied by a power of 3 modulo 256, the digit is the integer part of 3 times the
// byte as a fraction of 256.
float ternary_digit(uint8_t byte, int power) {
  return static_cast<float>((static_cast<uint8_t>(byte * power) * 3 >> 8) - 1);
}

void dequantize_tq1_0(const uint8_t* block, float* out) {
  const auto b = read<BlockTQ1_0>(block);
  const float d = float_from_half(b.d);
  const auto part = [&](const uint8_t* bytes, int count, int digits) {
    for (int digit = 0, power = 1; digit < digits; ++digit, power *= 3) {
      for (int i = 0; i < count; ++i) *out++ = d * ternary_digit(bytes[i], power);
    }
  };
  part(b.q, 32, 5);
  part(b.q + 32, 16, 5);
  part(b.high, 4, 4);
}

void dequantize_tq2_0(const uint8_t* block, float* out) {
  const auto b = read<BlockTQ2_0>(block);
  const float d = float_from_half(b.d);
  for (int part = 0; part < 8; ++part) {
    for (int i = 0; i < 32; ++i) {
      const int q = b.q[32 * (part / 4) + i] >> (2 * (part % 4)) & 3;
      *out++ = d * static_cast<float>(q - 1);
    }
  }
}

// Unsigned e4m3 with bias 7, halved because the values are stored doubled. 0x7f is NaN in e4m3 and counts as 0.
float half_of_e4m3(uint8_t bits) {
  if (bits == 0 || bits == 0x7f) return 0.0f;
  const int exponent = bits >> 3 & 15;
  const float fraction = static_cast<float>(bits & 7);
  if (exponent == 0) return fraction * 0x1p-10f;
  return (1.0f + fraction * 0.125f) * float_from_bits(static_cast<uint32_t>(exponent - 8 + 127) << 23);
}

void dequantize_nvfp4(const uint8_t* block, float* out) {
  const auto b = read<BlockNVFP4>(block);
  for (int part = 0; part < 4; ++part) {
    const float d = half_of_e4m3(b.d[part]);
    for (int i = 0; i < 8; ++i) {
      out[16 * part + i] = d * static_cast<float>(kMxfp4Values[b.q[8 * part + i] & 15]);
      out[16 * part + 8 + i] = d * static_cast<float>(kMxfp4Values[b.q[8 * part + i] >> 4]);
    }
  }
}

}  // namespace

DequantizeFn dequantizer(Format format) {
  if (!has_grid(format)) {
    throw std::invalid_argument(std::string(format_name(format)) + " needs its grid: call set_grid() first");
  }
  switch (format) {
    case Format::F64: return dequantize_f64;
    case Format::TQ1_0: return dequantize_tq1_0;
    case Format::TQ2_0: return dequantize_tq2_0;
    case Format::NVFP4: return dequantize_nvfp4;
    case Format::IQ2_XXS: return dequantize_iq2_xxs;
    case Format::IQ2_XS: return dequantize_iq2_xs;
    case Format::IQ2_S: return dequantize_iq2_s;
    case Format::IQ3_XXS: return dequantize_iq3_xxs;
    case Format::IQ3_S: return dequantize_iq3_s;
    case Format::IQ1_S: return dequantize_iq1_s;
    case Format::IQ1_M: return dequantize_iq1_m;
    default: throw std::invalid_argument(std::string(format_name(format)) + " is packed, not dequantised");
  }
}

}  // namespace kbench
