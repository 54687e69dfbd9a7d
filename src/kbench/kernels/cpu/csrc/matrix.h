// A weight matrix packed for the kernels: 16 rows side by side, so that one 64-byte line holds the next four
// int8 (or eight 4-bit) weights of 16 rows and every load is a full, aligned cache line.
//
// Rows are padded with zero weights to a multiple of kTileRows. A tile holds all K of its 16 rows, contiguous:
// decode reads a thread's tiles front to back, once.
//
// A matrix may also be left as it is in the file: nothing to do before the first token, more to do at each, see
// raw_tiles.h. The rare formats at the end of the list are always left so.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kbench {

enum class Format : int {
  F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4,
  // Without a packed layout: multiplied as F32.
  F64, TQ1_0, TQ2_0, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, NVFP4,
  kCount
};
constexpr int kFormatCount = static_cast<int>(Format::kCount);
constexpr int kPackedFormatCount = static_cast<int>(Format::MXFP4) + 1;  // those with a packed layout, the first ones
constexpr int64_t kTileRows = 16;

struct PackedMatrix {
  Format format = Format::F32;
  int64_t n = 0;           // rows (outputs)
  int64_t k = 0;           // columns (reduction length)
  int64_t tile_bytes = 0;  // bytes of one packed tile
  uint8_t* data = nullptr; // 64-byte aligned, tiles() * tile_bytes; null when the matrix is raw
  const uint8_t* raw = nullptr;  // the GGUF rows, where they are used as they are; no alignment
  int64_t tiles() const { return (n + kTileRows - 1) / kTileRows; }
};

// As GGUF spells it.
const char* format_name(Format format);
// False for a name without a format; format_from_name() throws std::invalid_argument, naming what is accepted.
bool find_format(const char* name, Format* format);
Format format_from_name(const char* name);
bool has_packed_layout(Format format);
// Whether its matrices multiply quantised activations; the others multiply the floats themselves.
bool quantised(Format format);
// Elements per GGUF block and bytes per block of `format`.
int64_t block_elements(Format format);
int64_t block_bytes(Format format);
int64_t raw_row_bytes(Format format, int64_t k);
// Bytes of one packed tile of `k` columns; `k` is a multiple of block_elements(format).
int64_t packed_tile_bytes(Format format, int64_t k);
// Packs tiles [tile_begin, tile_end) of the GGUF rows at `raw` (n rows of k weights) into `out` (the whole matrix).
void pack_tiles(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                int64_t tile_end);
// Dequantises row `row` to `out[k]`: exactly the values that GGUF's dequantisation gives. Raw matrices, too.
void unpack_row(const PackedMatrix& w, int64_t row, float* out);

}  // namespace kbench
