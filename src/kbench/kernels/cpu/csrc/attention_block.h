// What an ISA's attention is asked to do: some query rows against a stretch of one KV head's cache. Static functions: ISA
// files include this.
#pragma once
#include <cstdint>

#include "cache_type.h"

namespace kbench {

// The work is cut between threads at multiples of so many positions: 4096 of them are four pieces each for 64 threads,
// so that none has more than a quarter more to do than another.
constexpr int64_t kAttentionUnit = 16;
// Query rows (heads of one group x tokens) that share a stretch of the cache: widening the cache to floats then costs
// 2 % of the arithmetic that it serves, and queries and outputs of 576 and 512 floats fit the second-level cache.
constexpr int64_t kAttentionRows = 64;
// Positions and elements of a float panel of keys or values: 24 KiB, which stay in the first-level cache. Its rows are a
// cache line longer, so that a column does not fall into few sets.
constexpr int64_t kAttentionPanelPositions = 48;
constexpr int64_t kAttentionChunk = 128;
constexpr int64_t kAttentionPanelStride = kAttentionChunk + 16;

// Query rows against positions [begin, end) of one KV head, as in flash attention: running maximum, running sum,
// unnormalised output. Row r sees positions [low[r], high[r]) of these, neither of them below the row before's; perhaps
// none.
struct AttentionBlock {
  const float* q = nullptr;  // [rows][d_k], multiplied by the scale already
  int64_t rows = 0;          // at most kAttentionRows
  int64_t d_k = 0;
  int64_t d_v = 0;
  const uint8_t* k = nullptr;  // position p at k + p * k_stride bytes, stored as `type`
  const uint8_t* v = nullptr;  // k itself where the values are the beginning of the keys
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  CacheType type = CacheType::f32;
  int64_t begin = 0;
  int64_t end = 0;
  const int64_t* low = nullptr;  // null: all rows see from `begin` on
  const int64_t* high = nullptr;
  bool resume = false;       // max, sum and out hold what other positions gave: these are added
  float* max = nullptr;      // out [rows]; -inf where nothing is visible
  float* sum = nullptr;      // out [rows]: sum of exp(score - max)
  float* out = nullptr;      // out [rows][d_v]: sum of exp(score - max) * v
  float* scratch = nullptr;  // attention_scratch_floats(d_k)
};

// Five floats a row, scores [positions][rows], panels of keys and one of values, queries [rows][d_k], room to align.
static constexpr int64_t attention_scratch_floats(int64_t d_k) {
  return 5 * kAttentionRows + kAttentionPanelPositions * kAttentionRows + kAttentionRows * d_k + 16 +
         ((d_k + kAttentionChunk - 1) / kAttentionChunk + 1) * kAttentionPanelPositions * kAttentionPanelStride;
}

}  // namespace kbench
