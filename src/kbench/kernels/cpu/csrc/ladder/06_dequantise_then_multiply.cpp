// Step 6, dequantise then multiply: the weights are now stored in 8 bits (GGUF's Q8_0: 34 bytes for 32 weights, a
// quarter of the floats). The obvious way to use them: turn the whole matrix into floats, then do step 5.
//
// It saves space in the file and costs time everywhere else. For each weight 1 byte is read, 4 are written to memory,
// and 4 are read again: slower than having stored floats.
#include "blocked.h"
#include "half_bits.h"
#include "share.h"
#include "steps.h"

namespace kbench::ladder {

void dequantise_then_multiply(const Linear& call, ThreadPool& pool) {
  const BlockQ8_0* blocks = static_cast<const BlockQ8_0*>(call.w);
  const int64_t blocks_per_row = call.k / kBlock;
  share_rows(pool, call.n, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin * blocks_per_row; b < end * blocks_per_row; ++b) {
      const float scale = float_from_half_bits(blocks[b].scale);
      for (int64_t i = 0; i < kBlock; ++i) call.scratch[b * kBlock + i] = scale * blocks[b].q[i];
    }
  });
  share_rows(pool, call.n, [&](int64_t begin, int64_t end) { blocked_rows(call, call.scratch, begin, end); });
}

}  // namespace kbench::ladder
