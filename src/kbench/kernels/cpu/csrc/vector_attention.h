// Attention over a stretch of the cache for any vector width:
//   scores  = q . k                  few rows: dot products straight from the cache;  many: outer products
//   weights = exp(score - maximum)   online softmax: the output shrinks when a row's maximum moves
//   out    += weights . v            outer products
//
// Included once by an ISA's file, which defines before it, in an anonymous namespace (nothing here may be merged
// between ISAs by the linker), `struct V`: the register type F, kWidth floats each, its operations, and kRowTile, the
// rows of a register tile with two vectors of columns.
#pragma once
#include "op_table.h"
#include "unroll.h"
#include "vector_cache.h"
#include "vector_attention_panels.h"
#include "vector_attention_rows.h"

namespace kbench {
namespace {

// From so many rows on, widening the cache to float panels pays.
constexpr int64_t kRowsForPanels = 16;

template <CacheType kType>
void attention_of(const AttentionBlock& b) {
  for (int64_t r = 0; r < b.rows && !b.resume; ++r) {
    b.max[r] = -__builtin_inff();
    b.sum[r] = 0;
  }
  for (int64_t i = 0; i < b.rows * b.d_v && !b.resume; ++i) b.out[i] = 0;
  if (b.rows >= kRowsForPanels) {
    attend_panels<kType>(b);
  } else {
    attend_rows<kType>(b);
  }
}

void attention(const AttentionBlock& b) {
  switch (b.type) {
    case CacheType::f32: return attention_of<CacheType::f32>(b);
    case CacheType::f16: return attention_of<CacheType::f16>(b);
    case CacheType::bf16: return attention_of<CacheType::bf16>(b);
    default: return attention_of<CacheType::q8_0>(b);
  }
}

void fill_attention(OpTable& table) {
  table.attention = attention;
  table.from_cache[static_cast<int>(CacheType::f32)] = widen_row<CacheType::f32>;
  table.from_cache[static_cast<int>(CacheType::f16)] = widen_row<CacheType::f16>;
  table.from_cache[static_cast<int>(CacheType::bf16)] = widen_row<CacheType::bf16>;
  table.from_cache[static_cast<int>(CacheType::q8_0)] = widen_row<CacheType::q8_0>;
}

}  // namespace
}  // namespace kbench
