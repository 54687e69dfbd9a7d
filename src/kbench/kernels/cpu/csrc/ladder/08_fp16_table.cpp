// Step 8, table of float16 values: a float16 number has only 65536 values, so all of them are converted once, into a
// table of 256 KiB, and a scale becomes one load instead of a handful of instructions with branches.
//
// How much that gives depends on how often it is done: once per weight (matrices of float16) it is most of the work on
// a CPU without a conversion instruction; here it is once per 32 weights. And the table competes for the caches.
#include <array>

#include "fused.h"
#include "half_bits.h"
#include "share.h"
#include "steps.h"

namespace kbench::ladder {
namespace {

struct HalfTable {
  std::array<float, 1 << 16> values;
  HalfTable() {
    for (uint32_t half = 0; half < values.size(); ++half) {
      values[half] = float_from_half_bits(static_cast<uint16_t>(half));
    }
  }
};

}  // namespace

void fp16_table(const Linear& call, ThreadPool& pool) {
  static const HalfTable table;
  const float* values = table.values.data();
  share_rows(pool, call.n, [&](int64_t begin, int64_t end) {
    fused_rows(call, begin, end, [values](uint16_t half) { return values[half]; });
  });
}

}  // namespace kbench::ladder
