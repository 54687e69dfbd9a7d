// Many tokens: weights are unpacked once into a panel and multiplied with all tokens of a chunk.
//
//   for a range of columns, all of them unless rows are very long
//     for a chunk of tokens, whose activations stay in L2
//       for a few tiles (16 rows each)
//         for a block of columns, whose panel stays in L1
//           unpack the panel
//           for groups of T activation rows: sums[t][tile][row] += panel x activations
//
// A chunk's activations are copied once into the order in which they are used, so that one pointer walks through them:
//   group of T rows, block of 32 columns   [line][t] dwords | [t] scales | [offset][t] sums
//
// A panel holds, for each tile and block of 32 columns, lines of 64 bytes (a dword for each of 16 rows), and floats apart
// from them:
//   words  16 lines; line 2q     int16 weights 4q, 4q + 2 of each row
//                    line 2q + 1 int16 weights 4q + 1, 4q + 3: taking every other byte of a quad is one shift
//          zero points are subtracted and integer scales multiplied in: |word| <= 128 * 32
//   bytes   8 lines; line q      uint8 weights 4q .. 4q + 3
//           where integer scales multiply sums as they are widened, two more lines; line g: the scale of group g of 16,
//           twice as int16
//   floats  scale [scales][16], then offsets as line_kernel.h multiplies them [offsets][16]
//
// Unpacking knows the format; what multiplies knows the shape of the panel only, and is compiled once for each of the few
// shapes, in panels.cpp.
#pragma once
#include "../matmul_table.h"

namespace kbench {

struct PanelFormat {
  // Unpacks blocks [first, first + blocks) of a tile of w.
  void (*unpack)(const PackedMatrix& w, const uint8_t* tile, int64_t first, int64_t blocks, int64_t ahead,
                 uint8_t* lines, float* floats);
  bool words;   // else bytes
  bool scaled;  // those bytes have lines of integer scales
  int most;     // the largest of those bytes
  int scales;   // of a row and block: 1, or 2 (bytes only, and then as many offsets)
  int offsets;  // of a row and block
};

namespace KBENCH_ISA {
void multiply_panels(const PanelFormat& format, const PackedMatrix& w, const Activation& a, int64_t tokens,
                     int64_t tile_begin, int64_t tile_end, const float* bias, float* y, int64_t ldy,
                     const MatmulParameters& p);
}

}  // namespace kbench
