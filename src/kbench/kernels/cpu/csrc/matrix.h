// A weight matrix packed for the kernels: 16 rows side by side, so that one 64-byte line holds the next four
// int8 (or eight 4-bit) weights of 16 rows and every load is a full, aligned cache line.
//
// Rows are padded with zero weights to a multiple of kTileRows. A tile holds all K of its 16 rows, contiguous:
// decode reads a thread's tiles front to back, once.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kbench {

enum class Format : int {
  F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4, kCount
};
constexpr int kFormatCount = static_cast<int>(Format::kCount);
constexpr int64_t kTileRows = 16;

struct PackedMatrix {
  Format format = Format::F32;
  int64_t n = 0;           // rows (outputs)
  int64_t k = 0;           // columns (reduction length)
  int64_t tile_bytes = 0;  // bytes of one packed tile
  uint8_t* data = nullptr; // 64-byte aligned, tiles() * tile_bytes
  int64_t tiles() const { return (n + kTileRows - 1) / kTileRows; }
};

// As GGUF spells it.
const char* format_name(Format format);
// Elements per GGUF block and bytes per block of `format`.
int64_t block_elements(Format format);
int64_t block_bytes(Format format);
// Bytes of one packed tile of `k` columns; `k` is a multiple of block_elements(format).
int64_t packed_tile_bytes(Format format, int64_t k);
// Packs tiles [tile_begin, tile_end) of the GGUF rows at `raw` (n rows of k weights) into `out` (the whole matrix).
void pack_tiles(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                int64_t tile_end);
// Dequantises row `row` to `out[k]`: exactly the values that GGUF's dequantisation gives.
void unpack_row(const PackedMatrix& w, int64_t row, float* out);

}  // namespace kbench
