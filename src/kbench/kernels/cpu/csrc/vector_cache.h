// Cached rows as floats, for any vector width: a vector's elements lie within one q8_0 block. Included after `struct V`,
// see vector_attention.h.
#pragma once
#include "cache_type.h"

namespace kbench {
namespace {

using F = V::F;
constexpr int kWidth = V::kWidth;
static_assert(kCacheBlock % kWidth == 0, "a vector of a q8_0 row has one scale");

template <CacheType kType>
constexpr int64_t kElementBytes = kType == CacheType::f32 ? 4 : 2;  // of the types that have no blocks

// Elements [i, i + kWidth) of a row; i is a multiple of kWidth.
template <CacheType kType>
inline F load(const uint8_t* row, int64_t i) {
  if constexpr (kType == CacheType::f32) return V::load(reinterpret_cast<const float*>(row) + i);
  if constexpr (kType == CacheType::f16) return V::load_f16(row + 2 * i);
  if constexpr (kType == CacheType::bf16) return V::load_bf16(row + 2 * i);
  const uint8_t* block = row + i / kCacheBlock * kCacheBlockBytes;
  return V::mul(V::broadcast(V::half(block)), V::load_i8(block + 2 + i % kCacheBlock));
}

template <CacheType kType>
inline float load_one(const uint8_t* row, int64_t i) {
  if constexpr (kType == CacheType::f32) {
    float x;
    __builtin_memcpy(&x, row + 4 * i, sizeof x);
    return x;
  }
  if constexpr (kType == CacheType::f16) return V::half(row + 2 * i);
  if constexpr (kType == CacheType::bf16) {
    const uint32_t bits = static_cast<uint32_t>(row[2 * i + 1]) << 24 | static_cast<uint32_t>(row[2 * i]) << 16;
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
  }
  const uint8_t* block = row + i / kCacheBlock * kCacheBlockBytes;
  return V::half(block) * static_cast<float>(static_cast<int8_t>(block[2 + i % kCacheBlock]));
}

// out[width] = elements [first, first + width) of a row; of q8_0 whole blocks.
template <CacheType kType>
inline void widen_row(const uint8_t* row, int64_t first, int64_t width, float* out) {
  if constexpr (kType == CacheType::q8_0) {
    const uint8_t* block = row + first / kCacheBlock * kCacheBlockBytes;
    for (int64_t i = 0; i < width; i += kCacheBlock, block += kCacheBlockBytes) {
      const F scale = V::load_scale(block);
      KBENCH_UNROLL
      for (int c = 0; c < kCacheBlock; c += kWidth) V::store(out + i + c, V::mul(scale, V::load_i8(block + 2 + c)));
    }
  } else {
    int64_t i = 0;
    for (; i + kWidth <= width; i += kWidth) V::store(out + i, load<kType>(row, first + i));
    for (; i < width; ++i) out[i] = load_one<kType>(row, first + i);
  }
}

}  // namespace
}  // namespace kbench
