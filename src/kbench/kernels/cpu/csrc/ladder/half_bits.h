// A float16 number's bits to float, in plain C++.
//
//   float16  s eeeee ffffffffff                      float32  s eeeeeeee fffffffffffffffffffffff
//            exponent biased by 15                            exponent biased by 127
#pragma once
#include <cstdint>
#include <cstring>

namespace kbench::ladder {

static inline float float_from_half_bits(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = half >> 10 & 31u, fraction = half & 1023u;
  uint32_t bits;
  if (exponent == 0) {  // zero, or a number too small for an exponent of its own: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace kbench::ladder
