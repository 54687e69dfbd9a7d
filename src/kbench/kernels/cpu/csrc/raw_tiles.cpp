#include "raw_tiles.h"

#include <algorithm>
#include <memory>

#include "aligned_buffer.h"
#include "dequantize.h"
#include "packed_layout.h"

namespace kbench {
namespace {

// Memory for one tile, kept by its thread: it grows to the largest tile that the thread has made.
uint8_t* tile_memory(int64_t n_bytes) {
  thread_local std::unique_ptr<AlignedBuffer> buffer;
  thread_local int64_t size = 0;
  if (size < n_bytes) {
    size = 0;
    buffer = std::make_unique<AlignedBuffer>(n_bytes);
    size = n_bytes;
  }
  return buffer->data();
}

// Rows side by side, a block of columns at a time: what 16 rows of a block write stays in the first-level cache.
void dequantize_tile(const PackedMatrix& w, int64_t tile, int64_t rows, float* out) {
  constexpr int64_t kMost = kSuperBlock;
  const DequantizeFn dequantize = dequantizer(w.format);
  const int64_t elements = block_elements(w.format), size = block_bytes(w.format);
  const int64_t row_bytes = raw_row_bytes(w.format, w.k);
  const uint8_t* first = w.raw + tile * kTileRows * row_bytes;
  float values[kMost];
  if (rows < kTileRows) std::fill_n(out, w.k * kTileRows, 0.0f);
  for (int64_t column = 0; column < w.k; column += elements) {
    for (int64_t row = 0; row < rows; ++row) {
      dequantize(first + row * row_bytes + column / elements * size, values);
      float* to = out + column * kTileRows + row;
      for (int64_t i = 0; i < elements; ++i) to[i * kTileRows] = values[i];
    }
  }
}

}  // namespace

void check_readable(Format format) {
  if (!has_packed_layout(format)) dequantizer(format);
}

PackedMatrix tile_of_raw(const PackedMatrix& w, int64_t tile) {
  PackedMatrix out;
  out.format = has_packed_layout(w.format) ? w.format : Format::F32;
  out.n = std::min(w.n - tile * kTileRows, kTileRows);
  out.k = w.k;
  out.tile_bytes = packed_tile_bytes(out.format, w.k);
  out.data = tile_memory(out.tile_bytes);
  if (has_packed_layout(w.format)) {
    const int64_t row_bytes = raw_row_bytes(w.format, w.k);
    pack_tiles(w.format, w.raw + tile * kTileRows * row_bytes, out.n, w.k, out.data, 0, 1);
  } else {
    dequantize_tile(w, tile, out.n, reinterpret_cast<float*>(out.data));
  }
  return out;
}

void unpack_raw_row(const PackedMatrix& w, int64_t row, float* out) {
  const int64_t row_bytes = raw_row_bytes(w.format, w.k);
  if (has_packed_layout(w.format)) {
    PackedMatrix one = w;
    one.n = 1;
    one.raw += row * row_bytes;
    return unpack_row(tile_of_raw(one, 0), 0, out);
  }
  const DequantizeFn dequantize = dequantizer(w.format);
  const int64_t elements = block_elements(w.format), size = block_bytes(w.format);
  for (int64_t block = 0; block < w.k / elements; ++block) {
    dequantize(w.raw + row * row_bytes + block * size, out + block * elements);
  }
}

void multiply(MatmulFn kernel, const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin,
              int64_t tile_end, const float* bias, float* y, int64_t ldy, const MatmulParameters& p) {
  if (w.raw == nullptr) return kernel(w, a, tokens, tile_begin, tile_end, bias, y, ldy, p);
  if (tokens == 0) return;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t row = tile * kTileRows;
    kernel(tile_of_raw(w, tile), a, tokens, 0, 1, bias == nullptr ? nullptr : bias + row, y + row, ldy, p);
  }
}

}  // namespace kbench
