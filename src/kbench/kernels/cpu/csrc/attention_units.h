// How attention is shared out. A KV head's query rows (its heads x the tokens, token by token) are cut into blocks of at
// most kAttentionRows, and the positions that a block sees into units of kAttentionUnit. All (KV head, block, unit)
// triples in a row, each costing the same, are shared out evenly: a thread's share may begin and end in the middle of a
// block's positions.
//
//   KV head 0: block 0 |----|----|--   block 1 |----|----|----|-    KV head 1: ...
//              thread 0 ...........^ thread 1 ..........^ thread 2 ...
#pragma once
#include <algorithm>
#include <cstdint>

#include "aligned_buffer.h"
#include "attention_block.h"
#include "partition.h"
#include "program.h"

namespace kbench {

// Of the widest vectors. Blocks are cut at multiples of it.
constexpr int64_t kVectorRows = 16;
static_assert(kAttentionRows % kVectorRows == 0, "a block is never more than kAttentionRows");

// Blocks of `rows` query rows, at the fewest.
inline int64_t blocks_of(int64_t rows) { return (rows + kAttentionRows - 1) / kAttentionRows; }

// The blocks of all KV heads for one run, and where each begins in the row of units.
struct AttentionUnits {
  int64_t group, tokens, position, kv_heads, window, n_blocks;
  int64_t block_rows;  // of every block but the last
  int64_t per_head = 0;

  // window (0: none): the positions that a row sees at the most, its own the last of them.
  AttentionUnits(int64_t group, int64_t kv_heads, int64_t window, const RunState& s)
      : group(group), tokens(s.n_tokens), position(s.position), kv_heads(kv_heads), window(window) {
    const int64_t rows = group * tokens, fewest = blocks_of(rows);
    // Blocks of about one size, in whole vectors of rows.
    block_rows = round_up((rows + fewest - 1) / fewest, kVectorRows);
    n_blocks = (rows + block_rows - 1) / block_rows;
    for (int64_t b = 0; b < n_blocks; ++b) per_head += in_block(b);
  }
  int64_t row_begin(int64_t block) const { return block * block_rows; }
  int64_t row_end(int64_t block) const { return std::min((block + 1) * block_rows, group * tokens); }
  // A row sees positions [low, high), a block those from its first row's low to its last row's high.
  int64_t high(int64_t row) const { return position + row / group + 1; }
  int64_t low(int64_t row) const { return window == 0 ? 0 : std::max(int64_t{0}, high(row) - window); }
  int64_t begin(int64_t block) const { return low(row_begin(block)); }
  int64_t end(int64_t block) const { return high(row_end(block) - 1); }
  int64_t in_block(int64_t block) const { return (end(block) - begin(block) + kAttentionUnit - 1) / kAttentionUnit; }
  int64_t total() const { return per_head * kv_heads; }

  // fn(head, block, first unit of the block in the row) for every block that meets [range.begin, range.end)
  template <typename Fn>
  void each(const Range& range, Fn fn) const {
    for (int64_t head = range.begin / per_head; head < kv_heads && head * per_head < range.end; ++head) {
      int64_t first = head * per_head;
      for (int64_t block = 0; block < n_blocks && first < range.end; ++block) {
        const int64_t n = in_block(block);
        if (first + n > range.begin) fn(head, block, first);
        first += n;
      }
    }
  }
};

// Who holds unit `u` when `total` units are shared among `threads`: the inverse of share().
inline int holder(int64_t u, int64_t total, int threads) {
  int t = static_cast<int>(u * threads / total);
  while (share(total, t, threads).end <= u) ++t;
  while (share(total, t, threads).begin > u) --t;
  return t;
}

}  // namespace kbench
