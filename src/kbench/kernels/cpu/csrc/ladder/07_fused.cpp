// Step 7, fused: dequantise a slice of a row, multiply it by all tokens, forget it. The floats live in a buffer of
// 4 KiB that stays in the L1 cache; memory sees only the 34 bytes of each block. See fused.h.
#include "fused.h"
#include "half_bits.h"
#include "share.h"
#include "steps.h"

namespace kbench::ladder {

void fused(const Linear& call, ThreadPool& pool) {
  share_rows(pool, call.n, [&](int64_t begin, int64_t end) {
    fused_rows(call, begin, end, [](uint16_t half) { return float_from_half_bits(half); });
  });
}

}  // namespace kbench::ladder
