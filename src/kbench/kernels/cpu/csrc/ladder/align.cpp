// What step 11 does before the clock runs: see avx2/11_aligned.cpp for the layout and the reason.
#include <cstring>

#include "share.h"
#include "steps.h"

namespace kbench::ladder {

void align(const BlockQ8_0* blocks, int64_t n, int64_t k, uint8_t* out, ThreadPool& pool) {
  uint8_t* scales = out + n * k;
  share_rows(pool, n * k / kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      std::memcpy(out + b * kBlock, blocks[b].q, kBlock);
      std::memcpy(scales + b * sizeof(uint16_t), &blocks[b].scale, sizeof(uint16_t));
    }
  });
}

}  // namespace kbench::ladder
