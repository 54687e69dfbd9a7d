// What a cache stores its keys and values as, named after GGML's types. Static functions: ISA files include this.
#pragma once
#include <cstdint>

namespace kbench {

enum class CacheType : int { f32, f16, bf16, q8_0, kCount };
constexpr int kCacheTypes = static_cast<int>(CacheType::kCount);

// A row of q8_0 is d / 32 blocks, each with a scale of its own:  [scale f16 | 32 x int8]  34 bytes, element = scale * int8
constexpr int64_t kCacheBlock = 32;
constexpr int64_t kCacheBlockBytes = 34;

// Bytes of a row of `d` elements; for q8_0 `d` is a multiple of the block.
static constexpr int64_t cache_row_bytes(CacheType type, int64_t d) {
  return type == CacheType::f32    ? d * 4
         : type == CacheType::q8_0 ? d / kCacheBlock * kCacheBlockBytes
                                   : d * 2;
}

// Whether rows of `d` elements can be stored as `type`.
static constexpr bool cache_takes(CacheType type, int64_t d) { return type != CacheType::q8_0 || d % kCacheBlock == 0; }

}  // namespace kbench
