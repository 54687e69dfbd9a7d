// float16 and bfloat16 bits to float, in plain C++: exact, any CPU. ISA folders use their own instructions.
#pragma once
#include <cstdint>
#include <cstring>

namespace kbench {

static inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float float_from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 31u;
  const uint32_t fraction = half & 1023u;
  if (exponent == 31) return float_from_bits(sign | 0x7f800000u | fraction << 13);  // infinity, NaN
  if (exponent != 0) return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // zero and subnormals
  return sign ? -magnitude : magnitude;
}

static inline float float_from_bfloat16(uint16_t bits) { return float_from_bits(static_cast<uint32_t>(bits) << 16); }

}  // namespace kbench
