// Many tokens: weights are unpacked once into a panel and multiplied with all tokens of a chunk.
//
//   for a chunk of tokens, whose activations stay in L2
//     for a tile (16 rows)
//       for a block of columns, whose panel stays in L1
//         unpack the panel
//         for groups of T activation rows: sums[t][row] += panel x activations
//
// A chunk's activations are copied once into the order in which they are used, so that one pointer walks through them:
//   group of T rows, block of 32 columns   [line][t] dwords | [t] scales | [offset][t] sums
//
// A panel holds, per block of 32 columns, lines of 64 bytes (a dword for each of 16 rows), and floats apart from them:
//   words  16 lines; line 2q     int16 weights 4q, 4q + 2 of each row
//                    line 2q + 1 int16 weights 4q + 1, 4q + 3: taking every other byte of a quad is one shift
//          zero points are subtracted and integer scales multiplied in: |word| <= 128 * 32
//   bytes   8 lines; line q      uint8 weights 4q .. 4q + 3
//   floats  scale [groups][16], then offsets as line_kernel.h multiplies them [offsets][16]
#pragma once
#include "line_kernel.h"

namespace kbench {
namespace {

// Columns of a panel, at most and at least: a super-block is never cut. 1024 columns of words are 32 KiB.
constexpr int64_t kMostPanelColumns = 1024;
// Activation rows of a chunk, at most: their sums are 16 KiB.
constexpr int64_t kMostChunkRows = 256;
// Bytes of a chunk, at most: on the stack of the thread.
constexpr int64_t kMostChunkBytes = 512 * 1024;

template <class R, class W>
struct WordPanel {
  using Element = int16_t;
  static constexpr int64_t kBlockBytes = 16 * kLineBytes;
  static constexpr int kScales = 1;
  static constexpr int kOffsets = W::kMinimum ? W::kGroups : 0;
  static constexpr int kLines = 16;

  // Where the dword of `line` of row t of T stands in a block of a chunk.
  static constexpr int place(int line, int t, int T) { return line * T + t; }
  static const int16_t* values(const Activation& a) { return a.words; }
  static const float* scales(const Activation& a) { return a.word_scale; }
  static const float* sums(const Activation& a) { return a.word_sum; }

  static inline void unpack(const W& w, int b, int h, uint8_t* lines, float* floats) {
    using Int = typename R::Int;
    KBENCH_UNROLL
    for (int unit = 0; unit < W::kUnits; ++unit) {
      Int quads[W::kQuads];
      w.unpack(b, unit, 0, quads);
      KBENCH_UNROLL
      for (int i = 0; i < W::kQuads; ++i) {
        const int quad = W::quad(unit, i);
        Int words[2];
        if constexpr (W::kSigned) {
          words[0] = R::template right_signed<8>(R::template left<8>(quads[i]));
          words[1] = R::template right_signed<8>(quads[i]);
        } else {
          words[0] = R::and_(quads[i], R::int16s(0x00ff));
          words[1] = R::template right<8>(quads[i]);
        }
        KBENCH_UNROLL
        for (int j = 0; j < 2; ++j) {
          if constexpr (W::kZero != 0) words[j] = R::subtract_int16(words[j], R::int16s(W::kZero));
          if constexpr (W::kIntegerScales) words[j] = R::multiply_int16(words[j], w.pairs(b, quad * W::kGroups / 8, 0));
          R::store(lines + (2 * quad + j) * kLineBytes + h * 4 * R::kRows, words[j]);
        }
      }
    }
    if constexpr (W::kIntegerScales) {
      R::store_floats(floats + h * R::kRows, w.step(0));
    } else {
      R::store_floats(floats + h * R::kRows, w.scale(b, 0, 0));
    }
    if constexpr (kOffsets > 0) {
      typename R::Float offset[2];
      block_offsets<R, W>(w, b, 0, 0, offset);
      for (int s = 0; s < kOffsets; ++s) R::store_floats(floats + (1 + s) * kTileRows + h * R::kRows, offset[s]);
    }
  }

  template <int T>
  static inline void dots(const uint8_t* lines, const uint8_t* x, typename R::Int (*dots)[T][kTileRows / R::kRows]) {
    using Int = typename R::Int;
    constexpr int H = kTileRows / R::kRows;
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) {
      KBENCH_UNROLL
      for (int h = 0; h < H; ++h) dots[0][t][h] = R::zero_int();
    }
    KBENCH_UNROLL
    for (int line = 0; line < kLines; ++line) {
      Int w[H];
      KBENCH_UNROLL
      for (int h = 0; h < H; ++h) w[h] = R::load(lines + line * kLineBytes + h * 4 * R::kRows);
      KBENCH_UNROLL
      for (int t = 0; t < T; ++t) {
        const Int values = R::broadcast(x + 4 * (line * T + t));
        KBENCH_UNROLL
        for (int h = 0; h < H; ++h) dots[0][t][h] = R::word_dots(dots[0][t][h], w[h], values);
      }
    }
  }
};

template <class R, class W>
struct BytePanel {
  using Element = int8_t;
  using Dots = typename R::template Dots<W::kMost, W::kSigned && !R::kShiftsSigned>;
  static constexpr int64_t kBlockBytes = 8 * kLineBytes;
  static constexpr int kScales = W::kGroups;
  static constexpr int kOffsets = n_offsets<R, W>();
  static constexpr int kLines = 8;

  static constexpr int place(int line, int t, int T) { return line * T + t; }
  static const int8_t* values(const Activation& a) { return a.q; }
  static const float* scales(const Activation& a) { return a.scale; }
  static const float* sums(const Activation& a) { return a.sum; }

  static inline void unpack(const W& w, int b, int h, uint8_t* lines, float* floats) {
    KBENCH_UNROLL
    for (int unit = 0; unit < W::kUnits; ++unit) {
      typename R::Int quads[W::kQuads];
      w.unpack(b, unit, 0, quads);
      KBENCH_UNROLL
      for (int i = 0; i < W::kQuads; ++i) {
        if constexpr (W::kSigned && R::kShiftsSigned) quads[i] = R::add_bytes(quads[i], R::bytes(128));
        R::store(lines + W::quad(unit, i) * kLineBytes + h * 4 * R::kRows, quads[i]);
      }
    }
    for (int g = 0; g < W::kGroups; ++g) R::store_floats(floats + g * kTileRows + h * R::kRows, w.scale(b, g, 0));
    if constexpr (kOffsets > 0) {
      typename R::Float offset[2];
      block_offsets<R, W>(w, b, 0, zero_point<R, W>(), offset);
      for (int s = 0; s < kOffsets; ++s) R::store_floats(floats + (kScales + s) * kTileRows + h * R::kRows, offset[s]);
    }
  }

  template <int T>
  static inline void dots(const uint8_t* lines, const uint8_t* x, typename R::Int (*dots)[T][kTileRows / R::kRows]) {
    using Int = typename R::Int;
    constexpr int H = kTileRows / R::kRows, kGroupLines = kLines / kScales;
    KBENCH_UNROLL
    for (int g = 0; g < kScales; ++g) {
      Int sum[T][H];
      KBENCH_UNROLL
      for (int at = 0; at < kGroupLines; ++at) {
        const int line = g * kGroupLines + at, fit = at % Dots::kFit;
        Int w[H];
        KBENCH_UNROLL
        for (int h = 0; h < H; ++h) w[h] = R::load(lines + line * kLineBytes + h * 4 * R::kRows);
        KBENCH_UNROLL
        for (int t = 0; t < T; ++t) {
          const Int values = R::broadcast(x + 4 * (line * T + t));
          KBENCH_UNROLL
          for (int h = 0; h < H; ++h) {
            sum[t][h] = fit == 0 ? Dots::first(w[h], values) : Dots::next(sum[t][h], w[h], values);
            if (fit != Dots::kFit - 1 && at != kGroupLines - 1) continue;
            const Int wide = Dots::widen(sum[t][h]);
            dots[g][t][h] = at / Dots::kFit == 0 ? wide : R::add_int32(dots[g][t][h], wide);
          }
        }
      }
    }
  }
};

// Dwords of one row in a block of a chunk.
template <class P>
constexpr int64_t kRowDwords = P::kLines + 1 + P::kOffsets;

// Puts rows [row, row + rows) of the activations, a group, into the order of use.
template <class P>
inline void gather_rows(const Activation& a, int64_t row, int64_t rows, uint8_t* out) {
  const int64_t blocks = a.k / kBlock;
  for (int64_t t = 0; t < rows; ++t) {
    const auto* x = reinterpret_cast<const uint8_t*>(P::values(a) + (row + t) * a.k);
    const float* scale = P::scales(a) + (row + t) * blocks;
    const float* sum = P::sums(a) + 2 * (row + t) * blocks;
    uint8_t* out_block = out;
    for (int64_t b = 0; b < blocks; ++b) {
      for (int line = 0; line < P::kLines; ++line) {
        std::memcpy(out_block + 4 * P::place(line, static_cast<int>(t), static_cast<int>(rows)), x + 4 * line, 4);
      }
      std::memcpy(out_block + 4 * (P::kLines * rows + t), scale + b, 4);
      for (int s = 0; s < P::kOffsets; ++s) std::memcpy(out_block + 4 * ((P::kLines + 1 + s) * rows + t), sum + 2 * b + s, 4);
      x += 4 * P::kLines;
      out_block += 4 * kRowDwords<P> * rows;
    }
  }
}

// sums[t][row] += the panel's `blocks` blocks times T activation rows.
template <class R, class P, int T>
inline void multiply_panel(const uint8_t* lines, const float* floats, int64_t blocks, const uint8_t* x,
                           float (*sums)[kTileRows]) {
  using Float = typename R::Float;
  constexpr int H = kTileRows / R::kRows;
  for (int64_t b = 0; b < blocks; ++b) {
    typename R::Int dots[P::kScales][T][H];
    P::template dots<T>(lines, x, dots);
    const uint8_t* scale_x = x + 4 * P::kLines * T;
    // Sums stay in memory, in the first-level cache: the integer sums of a block need the registers, and a load and a
    // store per block are few beside its products.
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) {
      const Float sx = R::broadcast_float(scale_x + 4 * t);
      KBENCH_UNROLL
      for (int h = 0; h < H; ++h) {
        Float acc = R::load_floats(sums[t] + h * R::kRows);
        KBENCH_UNROLL
        for (int g = 0; g < P::kScales; ++g) {
          const Float scale = R::load_floats(floats + g * kTileRows + h * R::kRows);
          acc = R::multiply_add(R::to_float(dots[g][t][h]), R::multiply(scale, sx), acc);
        }
        KBENCH_UNROLL
        for (int s = 0; s < P::kOffsets; ++s) {
          const Float offset = R::load_floats(floats + (P::kScales + s) * kTileRows + h * R::kRows);
          acc = R::multiply_add(offset, R::broadcast_float(scale_x + 4 * (T * (1 + s) + t)), acc);
        }
        R::store_floats(sums[t] + h * R::kRows, acc);
      }
    }
    lines += P::kBlockBytes;
    floats += (P::kScales + P::kOffsets) * kTileRows;
    x += 4 * kRowDwords<P> * T;
  }
}

template <class R, class P, int T>
inline void multiply_panel_rows(int64_t rows, const uint8_t* lines, const float* floats, int64_t blocks,
                                const uint8_t* x, float (*sums)[kTileRows]) {
  if (rows == T) {
    multiply_panel<R, P, T>(lines, floats, blocks, x, sums);
  } else if constexpr (T > 1) {
    multiply_panel_rows<R, P, T - 1>(rows, lines, floats, blocks, x, sums);
  }
}

// Unpacks `blocks` blocks of a tile from block `first` on.
template <class R, class W, class P>
inline void unpack_panel(const PackedMatrix& w, const uint8_t* tile, int64_t first, int64_t blocks, int64_t ahead,
                         uint8_t* lines, float* floats) {
  for (int h = 0; h < kTileRows / R::kRows; ++h) {
    W weights(tile, w.k, first, h, ahead);
    for (int64_t b = 0; b < blocks; b += W::kBlocks) {
      weights.template begin<1>();
      for (int j = 0; j < W::kBlocks; ++j) {
        P::unpack(weights, j, h, lines + (b + j) * P::kBlockBytes,
                  floats + (b + j) * (P::kScales + P::kOffsets) * kTileRows);
      }
      weights.advance();
    }
  }
}

template <class R, class W, class P>
void multiply_panels(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin, int64_t tile_end,
                     const float* bias, float* y, int64_t ldy, const MatmulParameters& p) {
  alignas(64) uint8_t lines[kMostPanelColumns / kBlock * P::kBlockBytes];
  alignas(64) float floats[kMostPanelColumns / kBlock * (P::kScales + P::kOffsets) * kTileRows];
  alignas(64) float sums[kMostChunkRows][kTileRows];
  alignas(64) uint8_t chunk_data[kMostChunkBytes];
  const int64_t columns = clamp_to(p.k_block / kSuperBlock * kSuperBlock, kSuperBlock, kMostPanelColumns);
  const int64_t planes = P::kLines == 8 ? a.planes : 1;
  const int64_t row_bytes = w.k / kBlock * 4 * kRowDwords<P>;
  const int64_t fit = clamp_to(kMostChunkBytes / row_bytes / planes * planes, 0, kMostChunkRows);
  if (fit == 0) {  // rows of over 100000 columns
    multiply_tiles<LineKernel<R, W>>(w, a, tokens, tile_begin, tile_end, bias, y, ldy, p);
    return;
  }
  const int64_t most = p.token_tile > 0 && p.token_tile < R::kPanelRows ? p.token_tile : R::kPanelRows;
  const int64_t chunk_rows = clamp_to(p.chunk_bytes / row_bytes / planes * planes, most < fit ? most : fit, fit);
  const int64_t chunks = (tokens * planes + chunk_rows - 1) / chunk_rows;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t token = tokens * chunk / chunks, token_end = tokens * (chunk + 1) / chunks;
    const int64_t rows = (token_end - token) * planes, groups = (rows + most - 1) / most;
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t r = rows * group / groups;
      gather_rows<P>(a, token * planes + r, rows * (group + 1) / groups - r, chunk_data + r * row_bytes);
    }
    for (int64_t i = tile_begin; i < tile_end; ++i) {
      const uint8_t* tile = w.data + i * w.tile_bytes;
      std::memset(sums, 0, static_cast<size_t>(rows) * sizeof sums[0]);
      for (int64_t column = 0; column < w.k; column += columns) {
        const int64_t block = column / kBlock;
        const int64_t blocks = (w.k - column < columns ? w.k - column : columns) / kBlock;
        unpack_panel<R, W, P>(w, tile, block, blocks, p.prefetch_bytes, lines, floats);
        for (int64_t group = 0; group < groups; ++group) {
          const int64_t r = rows * group / groups, n = rows * (group + 1) / groups - r;
          multiply_panel_rows<R, P, R::kPanelRows>(
              n, lines, floats, blocks, chunk_data + r * row_bytes + block * 4 * kRowDwords<P> * n, sums + r);
        }
      }
      store_tile(sums, token, token_end, planes, w, i, bias, y, ldy);
    }
  }
}

}  // namespace
}  // namespace kbench
