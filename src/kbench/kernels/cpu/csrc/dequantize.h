// The formats that have no packed layout: their GGUF rows are kept as they are and dequantised to float32 a tile at a
// time, exactly as GGUF defines it. Correct, not fast: the rare types (ternary, and those with tables of grid points).
#pragma once
#include <cstdint>

#include "matrix.h"

namespace kbench {

// Dequantises one block: block_bytes(format) bytes to block_elements(format) floats.
using DequantizeFn = void (*)(const uint8_t* block, float* out);

// Throws std::invalid_argument for formats that are packed, and for those whose grid has not been set.
DequantizeFn dequantizer(Format format);

// Some formats store indices of points of a grid, a table of 4 or 8 small integers a point. The tables are data of the
// `gguf` package and handed in before the first matrix is made.
struct GridShape {
  int64_t points = 0;  // 0: a format without a grid
  int64_t width = 0;
};
GridShape grid_shape(Format format);
bool has_grid(Format format);
// Copies points * width values. Throws std::invalid_argument where the size is wrong, the format has no grid, or another
// grid was set before: matrices in use would change.
void set_grid(Format format, const int8_t* values, int64_t count);

}  // namespace kbench
