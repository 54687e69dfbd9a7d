// Attention over a stretch of the cache, readably.
#include <cmath>
#include <cstring>
#include <limits>

#include "op_table.h"

namespace kbench {
namespace {

float float_of(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  float value;
  if (magnitude < 0x0400) {
    value = static_cast<float>(magnitude) * 0x1p-24f;
  } else {
    const uint32_t bits = magnitude >= 0x7c00 ? 0x7f800000 | (magnitude & 0x3ff) << 13 : (magnitude << 13) + 0x38000000;
    std::memcpy(&value, &bits, sizeof value);
  }
  return sign ? -value : value;
}

uint16_t word_at(const uint8_t* p) {
  uint16_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

float element(const uint8_t* row, int64_t i, CacheType type) {
  if (type == CacheType::q8_0) {
    const uint8_t* block = row + i / kCacheBlock * kCacheBlockBytes;
    return float_of(word_at(block)) * static_cast<float>(static_cast<int8_t>(block[2 + i % kCacheBlock]));
  }
  if (type == CacheType::f16) return float_of(word_at(row + 2 * i));
  const uint32_t bits = type == CacheType::bf16 ? static_cast<uint32_t>(word_at(row + 2 * i)) << 16 : 0;
  float value;
  std::memcpy(&value, type == CacheType::bf16 ? reinterpret_cast<const uint8_t*>(&bits) : row + 4 * i, sizeof value);
  return value;
}

void attention(const AttentionBlock& b) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int64_t r = 0; r < b.rows; ++r) {
    const float* q = b.q + r * b.d_k;
    float* out = b.out + r * b.d_v;
    const int64_t begin = b.low != nullptr && b.low[r] > b.begin ? b.low[r] : b.begin;
    const int64_t end = b.high[r] < b.end ? b.high[r] : b.end;
    float max = b.resume ? b.max[r] : -kInfinity, sum = b.resume ? b.sum[r] : 0;
    for (int64_t i = 0; i < b.d_v && !b.resume; ++i) out[i] = 0;
    for (int64_t p = begin; p < end; ++p) {
      float score = 0;
      for (int64_t i = 0; i < b.d_k; ++i) score += q[i] * element(b.k + p * b.k_stride, i, b.type);
      if (score > max) {
        const float shrink = std::exp(max - score);
        sum *= shrink;
        for (int64_t i = 0; i < b.d_v; ++i) out[i] *= shrink;
        max = score;
      }
      const float weight = std::exp(score - max);
      sum += weight;
      for (int64_t i = 0; i < b.d_v; ++i) out[i] += weight * element(b.v + p * b.v_stride, i, b.type);
    }
    b.max[r] = max;
    b.sum[r] = sum;
  }
}

template <CacheType kType>
void from_cache(const uint8_t* row, int64_t first, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = element(row, first + i, kType);
}

}  // namespace

void fill_op_table_scalar_attention(OpTable& table) {
  table.attention = attention;
  table.from_cache[static_cast<int>(CacheType::f32)] = from_cache<CacheType::f32>;
  table.from_cache[static_cast<int>(CacheType::f16)] = from_cache<CacheType::f16>;
  table.from_cache[static_cast<int>(CacheType::bf16)] = from_cache<CacheType::bf16>;
  table.from_cache[static_cast<int>(CacheType::q8_0)] = from_cache<CacheType::q8_0>;
}

}  // namespace kbench
