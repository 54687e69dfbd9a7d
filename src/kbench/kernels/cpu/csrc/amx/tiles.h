// Tile registers. The tile unit multiplies A (up to 16 rows of 64 bytes) with B (as many rows of dwords as A has dwords
// in a row) and adds to C (16 x 16 dwords): activations are A, the lines of a panel are B, one line a row.
//
//   C0 .. C3  sums of 16 activation rows with each of two weight tiles, twice: a product takes 52 cycles and one starts
//             every 16, so it should not wait for the one before
//   A, A1     activation rows; A1: their second term
//   B0, B1    lines of the two weight tiles
#pragma once
#include <cstdint>
#include <cstring>

#include "../packed_layout.h"
#include "intrinsics.h"

namespace kbench {
namespace {

// The unit takes its registers' numbers from the instruction.
#define KBENCH_C0 0
#define KBENCH_C1 1
#define KBENCH_C2 2
#define KBENCH_C3 3
#define KBENCH_A 4
#define KBENCH_A1 5
#define KBENCH_B0 6
#define KBENCH_B1 7

constexpr int64_t kTileUnitRows = 16;

// The intrinsics do not tell the compiler that they read memory.
inline void memory_is_read(const void* memory) { __asm__ volatile("" ::"r"(memory) : "memory"); }

// Configures this thread's tile registers, for as long as it lives: a thread that holds none is cheaper to switch.
class TileScope {
 public:
  // dwords: of a row of activations that are multiplied at a time, and so the lines.
  explicit TileScope(int dwords) {
    alignas(64) Config config = {};
    config.palette = 1;
    for (int c = KBENCH_C0; c <= KBENCH_C3; ++c) set(config, c, kTileUnitRows, kLineBytes);
    for (int a = KBENCH_A; a <= KBENCH_A1; ++a) set(config, a, kTileUnitRows, 4 * dwords);
    for (int b = KBENCH_B0; b <= KBENCH_B1; ++b) set(config, b, dwords, kLineBytes);
    memory_is_read(&config);
    _tile_loadconfig(&config);
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  struct Config {  // as the instruction reads it: 64 bytes
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  static_assert(sizeof(Config) == 64, "the size of a tile configuration");
  static void set(Config& config, int tile, int64_t rows, int64_t row_bytes) {
    config.rows[tile] = static_cast<uint8_t>(rows);
    config.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
  }
};

}  // namespace
}  // namespace kbench
