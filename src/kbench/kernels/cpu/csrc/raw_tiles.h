// Matrices that stay in the file, usually a memory map: a thread makes a tile when it multiplies it, in memory of its
// own that the second-level cache holds, and then the ordinary kernel runs. The tile has the bytes that packing ahead
// would have given it, so results are the same to the last bit; a tile of a format without a packed layout is F32.
#pragma once
#include <cstdint>

#include "matmul_table.h"
#include "matrix.h"

namespace kbench {

// Throws std::invalid_argument for a format whose grid has not been set.
void check_readable(Format format);

// Tile `tile` of the raw matrix `w` as a packed matrix of one tile. It is this thread's until its next call. Throws
// std::bad_alloc.
PackedMatrix tile_of_raw(const PackedMatrix& w, int64_t tile);

// unpack_row() of a raw matrix.
void unpack_raw_row(const PackedMatrix& w, int64_t row, float* out);

// Runs `kernel` on tiles [tile_begin, tile_end) of `w`, which may be raw. Otherwise as MatmulFn says.
void multiply(MatmulFn kernel, const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin,
              int64_t tile_end, const float* bias, float* y, int64_t ldy, const MatmulParameters& p);

}  // namespace kbench
