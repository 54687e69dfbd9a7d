// AMX: panels of bytes are multiplied by the tile unit; few tokens, and everything else, as AVX-512 BF16 does it.
// ../avx2/registers.h says what each name is.
#pragma once
#if defined(__x86_64__)
#define KBENCH_HAS_REGISTERS
#define KBENCH_HAS_TILES
#include "../avx512/sixteen_rows.h"

namespace kbench {
namespace {

struct Registers : SixteenRows {
  static constexpr int kPanelRows = 16;  // of a tile register
  static constexpr bool kShiftsSigned = true;
  static constexpr bool kScalesDots = false;
  static constexpr int kMostOfBytePanel = 255;
  // The tile unit multiplies bytes at eight times the rate at which AVX-512 multiplies words: two planes take half of
  // it.
  static constexpr bool kHasWords = false;
  static constexpr bool kPairsRows = false;
  static constexpr bool kHasLines = false;
  // Not measured: no such machine was at hand. A tile register holds 16 rows.
  static constexpr int64_t panel_tokens(int, int planes) { return planes == 1 ? 16 : 8; }
};

}  // namespace
}  // namespace kbench
#endif
