// Probe loops of the tile unit.
#include "probe_table.h"
#include "tiles.h"

namespace kbench {
namespace {

// 16 x 16 sums of 16 dwords each, four of them: a product takes 52 cycles, and one starts every 16.
#define KBENCH_PEAK(product)                  \
  for (int64_t r = 0; r < rounds; ++r) {      \
    product(KBENCH_C0, KBENCH_A, KBENCH_B0);  \
    product(KBENCH_C1, KBENCH_A, KBENCH_B1);  \
    product(KBENCH_C2, KBENCH_A1, KBENCH_B0); \
    product(KBENCH_C3, KBENCH_A1, KBENCH_B1); \
  }

constexpr int64_t kDwordProducts = 4 * 16 * 16 * 16;

int64_t peak_int8(int64_t rounds, float* sink) {
  const TileScope tiles(16);
  KBENCH_PEAK(_tile_dpbsud)
  *sink = 0;  // the instructions are volatile: they run whether or not anyone looks
  return rounds * kDwordProducts * 4 * 2;
}

int64_t peak_bf16(int64_t rounds, float* sink) {
  const TileScope tiles(16);
  KBENCH_PEAK(_tile_dpbf16ps)
  *sink = 0;
  return rounds * kDwordProducts * 2 * 2;
}

}  // namespace

void fill_probe_table_amx(ProbeTable& table) {
  table.int8 = peak_int8;
  table.bf16 = peak_bf16;
}

}  // namespace kbench
