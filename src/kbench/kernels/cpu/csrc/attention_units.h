// How attention is shared out. A span's query rows of a KV head (the head's queries x the tokens, token by token) are cut
// into blocks of at most kAttentionRows, and the positions that a block sees into units of kAttentionUnit. All (span, KV
// head, block, unit) in a row, each costing the same, are shared out evenly: a thread's share may begin and end in the
// middle of a block's positions.
//
//   span 0, KV head 0: block 0 |----|----|--   block 1 |----|----|----|-    KV head 1: ...   span 1, KV head 0: ...
//                      thread 0 ...........^ thread 1 ..........^ thread 2 ...
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

// A block of rows, and where its units lie in the row of all units.
struct PlacedBlock {
  const Span* span;
  int64_t head;        // KV head
  int64_t row0, row1;  // of the span's group x tokens
  int64_t begin, end;  // positions that any of the rows sees
  int64_t index;       // counts all blocks
  int64_t first, n;    // units
};

// The blocks of all spans and KV heads for one run.
struct AttentionUnits {
  int64_t group, kv_heads, window;
  const RunState& state;
  int64_t total = 0;

  // window (0: none): the positions that a row sees at the most, its own the last of them.
  AttentionUnits(int64_t group, int64_t kv_heads, int64_t window, const RunState& s)
      : group(group), kv_heads(kv_heads), window(window), state(s) {
    for (int64_t i = 0; i < s.n_spans; ++i) total += kv_heads * Cut(*this, s.spans[i]).per_head;
  }
  // A span's row sees positions [low, high).
  int64_t high(const Span& span, int64_t row) const { return span.position + row / group + 1; }
  int64_t low(const Span& span, int64_t row) const { return first_seen(high(span, row) - 1, window); }

  // fn(block) for every block that meets [range.begin, range.end)
  template <typename Fn>
  void each(const Range& range, Fn fn) const {
    int64_t first = 0, index = 0;
    for (int64_t i = 0; i < state.n_spans && first < range.end; ++i) {
      const Span& span = state.spans[i];
      const Cut cut(*this, span);
      for (int64_t head = 0; head < kv_heads && first < range.end; ++head) {
        if (first + cut.per_head <= range.begin) {
          first += cut.per_head;
          index += cut.n_blocks;
          continue;
        }
        for (int64_t block = 0; block < cut.n_blocks && first < range.end; ++block, ++index) {
          PlacedBlock b = cut.block(block);
          b.head = head;
          b.index = index;
          b.first = first;
          if (first + b.n > range.begin) fn(b);
          first += b.n;
        }
      }
    }
  }

 private:
  // A span's rows of one KV head.
  struct Cut {
    const AttentionUnits& units;
    const Span& span;
    int64_t block_rows;  // of every block but the last
    int64_t n_blocks, per_head = 0;

    Cut(const AttentionUnits& units, const Span& span) : units(units), span(span) {
      const int64_t rows = units.group * span.n, fewest = blocks_of(rows);
      // Blocks of about one size, in whole vectors of rows.
      block_rows = round_up((rows + fewest - 1) / fewest, kVectorRows);
      n_blocks = (rows + block_rows - 1) / block_rows;
      for (int64_t b = 0; b < n_blocks; ++b) per_head += block(b).n;
    }
    PlacedBlock block(int64_t index) const {
      PlacedBlock b{};
      b.span = &span;
      b.row0 = index * block_rows;
      b.row1 = std::min(b.row0 + block_rows, units.group * span.n);
      b.begin = units.low(span, b.row0);
      b.end = units.high(span, b.row1 - 1);
      b.n = (b.end - b.begin + kAttentionUnit - 1) / kAttentionUnit;
      return b;
    }
  };
};

// Who holds unit `u` when `total` units are shared among `threads`: the inverse of share().
inline int holder(int64_t u, int64_t total, int threads) {
  int t = static_cast<int>(u * threads / total);
  while (share(total, t, threads).end <= u) ++t;
  while (share(total, t, threads).begin > u) --t;
  return t;
}

}  // namespace kbench
