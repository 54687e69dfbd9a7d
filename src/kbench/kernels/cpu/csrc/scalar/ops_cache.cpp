// Rows as a cache stores them, readably: the truth that the vector versions are tested against.
#include <cmath>
#include <cstring>

#include "op_table.h"

namespace kbench {
namespace {

void to_f32(const float* x, int64_t n, uint8_t* y) { std::memcpy(y, x, static_cast<size_t>(n) * 4); }

uint16_t half_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);   // NaN
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 65536 or more: infinity
  if (magnitude < 0x38800000) {
    // Subnormal: adding 0.5 makes float's own rounding cut at half's last place, 2^-24.
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5f;
    uint32_t rounded;
    std::memcpy(&rounded, &shifted, sizeof rounded);
    return static_cast<uint16_t>(sign | (rounded - 0x3f000000));
  }
  const uint32_t odd = magnitude >> 13 & 1;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

uint16_t bfloat16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 64);  // a NaN that stays one
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void to_f16(const float* x, int64_t n, uint8_t* y) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t half = half_of(x[i]);
    std::memcpy(y + 2 * i, &half, sizeof half);
  }
}

void to_bf16(const float* x, int64_t n, uint8_t* y) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = bfloat16_of(x[i]);
    std::memcpy(y + 2 * i, &bits, sizeof bits);
  }
}

void to_q8_0(const float* x, int64_t n, uint8_t* y) {
  for (int64_t block = 0; block < n; block += kCacheBlock, y += kCacheBlockBytes) {
    float largest = 0;
    for (int64_t i = block; i < block + kCacheBlock; ++i) {
      // Written so that a NaN, once met, stays: it must not hide behind 31 good numbers.
      if (!(std::fabs(x[i]) <= largest) && !std::isnan(largest)) largest = std::fabs(x[i]);
    }
    const float scale = largest / 127.0f, inverse = scale == 0 ? 0 : 1.0f / scale;
    const uint16_t stored = half_of(scale);
    std::memcpy(y, &stored, sizeof stored);
    for (int64_t i = 0; i < kCacheBlock; ++i) {
      const float steps = std::round(x[block + i] * inverse);
      // Out of range where the scale is no normal number: then its product is 0, infinite or NaN whatever stands here.
      const bool fits = steps >= -127 && steps <= 127;
      y[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(fits ? steps : 0));
    }
  }
}

}  // namespace

void fill_op_table_scalar_cache(OpTable& table) {
  table.to_cache[static_cast<int>(CacheType::f32)] = to_f32;
  table.to_cache[static_cast<int>(CacheType::f16)] = to_f16;
  table.to_cache[static_cast<int>(CacheType::bf16)] = to_bf16;
  table.to_cache[static_cast<int>(CacheType::q8_0)] = to_q8_0;
}

}  // namespace kbench
