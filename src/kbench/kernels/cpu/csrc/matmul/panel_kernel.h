// The part of the panel kernels that knows no format: gathering activations and multiplying panels. See panel.h.
//
// A shape S says how the lines of a block are multiplied:
//   kLines, kScales            as in panel.h; kPanelLines: with the lines of integer scales
//   kRows                      the most activation rows at a time
//   values, scales, sums       what it reads of the activations
//   place(line, t, T)          where the dword of `line` of row t of T stands in a block of a chunk
//   dots<T, H>(lines, x, dots) dots[g][t][h] = integer sums of a block; lines: those of each tile, see load_line
#pragma once
#include "../packed_layout.h"
#include "../token_tiles.h"
#include "../unroll.h"
#include "panel.h"

namespace kbench {
namespace {

// Columns of a panel, at most: 1024 columns of words are 32 KiB.
constexpr int64_t kMostPanelColumns = 1024;
// Activation rows of a chunk, at most: their sums are 16 KiB a tile.
constexpr int64_t kMostChunkRows = 256;
// Bytes of a chunk, at most: on the stack of the thread.
constexpr int64_t kMostChunkBytes = 512 * 1024;
// Where a chunk would hold fewer rows than this, unpacking weights for them costs too much: columns are taken in ranges,
// of which a chunk holds about kRangeRows rows. Each range reads and writes y once more. Measured on Zen 3, 16384 columns
// in ranges: words 1.16 to 1.2 times as fast, bytes 1.06; 5120 columns, of which 45 rows fit, are slower in ranges.
constexpr int64_t kLeastChunkRows = 32;
constexpr int64_t kRangeRows = 48;
// A tile register is filled whole: what stands behind the last rows of a chunk is read, and not used.
constexpr int64_t kChunkSlack = 16 * kLineBytes;
// Scales and offsets of a row and block, at most.
constexpr int kMostFloats = 4;

// Rows of register h of a line, where lines[j] is that line of the j-th tile.
template <class R>
inline typename R::Int load_line(const uint8_t* const* lines, int line, int h) {
  constexpr int kRegisters = kTileRows / R::kRows;
  return R::load(lines[h / kRegisters] + line * kLineBytes + h % kRegisters * 4 * R::kRows);
}

template <class R>
struct WordLines {
  static constexpr int kLines = 16, kPanelLines = kLines, kScales = 1, kRows = R::kPanelRows;
  static constexpr int place(int line, int t, int T) { return line * T + t; }
  static const int16_t* values(const Activation& a) { return a.words; }
  static const float* scales(const Activation& a) { return a.word_scale; }
  static const float* sums(const Activation& a) { return a.word_sum; }

  template <int T, int H>
  static inline void dots(const uint8_t* const* lines, const uint8_t* x, typename R::Int (*dots)[T][H]) {
    using Int = typename R::Int;
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) {
      KBENCH_UNROLL
      for (int h = 0; h < H; ++h) dots[0][t][h] = R::zero_int();
    }
    KBENCH_UNROLL
    for (int line = 0; line < kLines; ++line) {
      Int w[H];
      KBENCH_UNROLL
      for (int h = 0; h < H; ++h) w[h] = load_line<R>(lines, line, h);
      KBENCH_UNROLL
      for (int t = 0; t < T; ++t) {
        const Int values = R::broadcast(x + 4 * place(line, t, T));
        KBENCH_UNROLL
        for (int h = 0; h < H; ++h) dots[0][t][h] = R::word_dots(dots[0][t][h], w[h], values);
      }
    }
  }
};

// Bytes of at most `most`.
template <class R, int most, int n_scales>
struct ByteLines {
  using Dots = typename R::template Dots<most, false>;
  static constexpr int kLines = 8, kPanelLines = kLines, kScales = n_scales, kRows = R::kPanelRows;
  static constexpr int place(int line, int t, int T) { return line * T + t; }
  static const int8_t* values(const Activation& a) { return a.q; }
  static const float* scales(const Activation& a) { return a.scale; }
  static const float* sums(const Activation& a) { return a.sum; }

  template <int T, int H>
  static inline void dots(const uint8_t* const* lines, const uint8_t* x, typename R::Int (*dots)[T][H]) {
    using Int = typename R::Int;
    constexpr int kGroupLines = kLines / kScales;
    KBENCH_UNROLL
    for (int g = 0; g < kScales; ++g) {
      Int sum[T][H];
      KBENCH_UNROLL
      for (int at = 0; at < kGroupLines; ++at) {
        const int line = g * kGroupLines + at, fit = at % Dots::kFit;
        Int w[H];
        KBENCH_UNROLL
        for (int h = 0; h < H; ++h) w[h] = load_line<R>(lines, line, h);
        KBENCH_UNROLL
        for (int t = 0; t < T; ++t) {
          const Int values = R::broadcast(x + 4 * place(line, t, T));
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

// Bytes whose sums are multiplied with the integer scale of their group of 16 as they are widened.
template <class R, int most>
struct ScaledByteLines : ByteLines<R, most, 1> {
  using Base = ByteLines<R, most, 1>;
  using Dots = typename R::template Dots<most, false>;
  static constexpr int kGroups = 2, kPanelLines = Base::kLines + kGroups;
  static constexpr int kRows = R::kScaledPanelRows;

  template <int T, int H>
  static inline void dots(const uint8_t* const* lines, const uint8_t* x, typename R::Int (*dots)[T][H]) {
    using Int = typename R::Int;
    constexpr int kGroupLines = Base::kLines / kGroups;
    KBENCH_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      Int sum[T][H];
      KBENCH_UNROLL
      for (int at = 0; at < kGroupLines; ++at) {
        const int line = g * kGroupLines + at, fit = at % Dots::kFit;
        Int w[H];
        KBENCH_UNROLL
        for (int h = 0; h < H; ++h) w[h] = load_line<R>(lines, line, h);
        KBENCH_UNROLL
        for (int t = 0; t < T; ++t) {
          const Int values = R::broadcast(x + 4 * Base::place(line, t, T));
          KBENCH_UNROLL
          for (int h = 0; h < H; ++h) {
            sum[t][h] = fit == 0 ? Dots::first(w[h], values) : Dots::next(sum[t][h], w[h], values);
            if (fit != Dots::kFit - 1 && at != kGroupLines - 1) continue;
            const Int wide = Dots::widen_scaled(sum[t][h], load_line<R>(lines, Base::kLines + g, h));
            dots[0][t][h] = g == 0 && at < Dots::kFit ? wide : R::add_int32(dots[0][t][h], wide);
            R::settle(dots[0][t][h]);
          }
        }
      }
    }
  }
};

// Dwords of one row in a block of a chunk.
template <class S>
constexpr int64_t row_dwords(int offsets) {
  return S::kLines + 1 + offsets;
}

// Puts rows [row, row + rows) of the activations, a group, into the order of use: blocks [first, first + blocks).
template <class S>
void gather_rows(const Activation& a, int64_t row, int64_t rows, int64_t first, int64_t blocks, int offsets,
                 uint8_t* out) {
  const int64_t all = a.k / kBlock;
  for (int64_t t = 0; t < rows; ++t) {
    const auto* x = reinterpret_cast<const uint8_t*>(S::values(a) + (row + t) * a.k + first * kBlock);
    const float* scale = S::scales(a) + (row + t) * all + first;
    const float* sum = S::sums(a) + 2 * ((row + t) * all + first);
    uint8_t* out_block = out;
    for (int64_t b = 0; b < blocks; ++b) {
      for (int line = 0; line < S::kLines; ++line) {
        std::memcpy(out_block + 4 * S::place(line, static_cast<int>(t), static_cast<int>(rows)), x + 4 * line, 4);
      }
      std::memcpy(out_block + 4 * (S::kLines * rows + t), scale + b, 4);
      for (int s = 0; s < offsets; ++s) std::memcpy(out_block + 4 * ((S::kLines + 1 + s) * rows + t), sum + 2 * b + s, 4);
      x += 4 * S::kLines;
      out_block += 4 * row_dwords<S>(offsets) * rows;
    }
  }
}

// sums[t][row] += `blocks` blocks of the panels of kTiles tiles, `stride` blocks apart, times T activation rows.
template <class R, class S, int kOffsets, int kTiles, int T>
inline void multiply_panel(const uint8_t* lines, const float* floats, int64_t stride, int64_t blocks, const uint8_t* x,
                           float* sums) {
  using Float = typename R::Float;
  constexpr int kRegisters = kTileRows / R::kRows, H = kTiles * kRegisters, kFloats = S::kScales + kOffsets;
  const uint8_t* lines_of[kTiles];
  const float* floats_of[kTiles];
  KBENCH_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    lines_of[j] = lines + j * stride * S::kPanelLines * kLineBytes;
    floats_of[j] = floats + j * stride * kFloats * kTileRows;
  }
  for (int64_t b = 0; b < blocks; ++b) {
    typename R::Int dots[S::kScales][T][H];
    S::template dots<T, H>(lines_of, x, dots);
    const uint8_t* scale_x = x + 4 * S::kLines * T;
    // Sums stay in memory, in the first-level cache: the integer sums of a block need the registers, and a load and a
    // store per block are few beside its products.
    KBENCH_UNROLL
    for (int t = 0; t < T; ++t) {
      const Float sx = R::broadcast_float(scale_x + 4 * t);
      Float sum_x[kOffsets + 1];
      KBENCH_UNROLL
      for (int s = 0; s < kOffsets; ++s) sum_x[s] = R::broadcast_float(scale_x + 4 * (T * (1 + s) + t));
      KBENCH_UNROLL
      for (int h = 0; h < H; ++h) {
        const float* factors = floats_of[h / kRegisters] + h % kRegisters * R::kRows;
        float* sum = sums + t * R::kPanelTiles * kTileRows + h * R::kRows;
        Float acc = R::load_floats(sum);
        KBENCH_UNROLL
        for (int g = 0; g < S::kScales; ++g) {
          const Float scale = R::load_floats(factors + g * kTileRows);
          acc = R::multiply_add(R::to_float(dots[g][t][h]), R::multiply(scale, sx), acc);
        }
        KBENCH_UNROLL
        for (int s = 0; s < kOffsets; ++s) {
          acc = R::multiply_add(R::load_floats(factors + (S::kScales + s) * kTileRows), sum_x[s], acc);
        }
        R::store_floats(sum, acc);
      }
    }
    KBENCH_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      lines_of[j] += S::kPanelLines * kLineBytes;
      floats_of[j] += kFloats * kTileRows;
    }
    x += 4 * row_dwords<S>(kOffsets) * T;
  }
}

template <class R, class S, int kOffsets, int kTiles, int T>
inline void multiply_panel_rows(int64_t rows, const uint8_t* lines, const float* floats, int64_t stride, int64_t blocks,
                                const uint8_t* x, float* sums) {
  if (rows == T) {
    multiply_panel<R, S, kOffsets, kTiles, T>(lines, floats, stride, blocks, x, sums);
  } else if constexpr (T > 1) {
    multiply_panel_rows<R, S, kOffsets, kTiles, T - 1>(rows, lines, floats, stride, blocks, x, sums);
  }
}

template <class R, class S, int kOffsets>
void multiply_panel_tiles(int64_t tiles, int64_t rows, const uint8_t* lines, const float* floats, int64_t stride,
                          int64_t blocks, const uint8_t* x, float* sums) {
  if (tiles == R::kPanelTiles) {
    multiply_panel_rows<R, S, kOffsets, R::kPanelTiles, S::kRows>(rows, lines, floats, stride, blocks, x, sums);
  } else {
    multiply_panel_rows<R, S, kOffsets, 1, S::kRows>(rows, lines, floats, stride, blocks, x, sums);
  }
}

// The code of one shape.
struct PanelKernel {
  void (*gather)(const Activation& a, int64_t row, int64_t rows, int64_t first, int64_t blocks, int offsets,
                 uint8_t* out) = nullptr;
  void (*multiply)(int64_t tiles, int64_t rows, const uint8_t* lines, const float* floats, int64_t stride,
                   int64_t blocks, const uint8_t* x, float* sums) = nullptr;
  int64_t lines = 0, panel_lines = 0, rows = 0;  // kLines, kPanelLines and kRows of the shape
};

template <class R, class S, int kOffsets>
constexpr PanelKernel kernel_of() {
  return {gather_rows<S>, multiply_panel_tiles<R, S, kOffsets>, S::kLines, S::kPanelLines, S::kRows};
}

template <class R>
inline void multiply_panels_with(const PanelKernel& kernel, const PanelFormat& format, const PackedMatrix& w,
                          const Activation& a, int64_t tokens, int64_t tile_begin, int64_t tile_end, const float* bias,
                          float* y, int64_t ldy, const MatmulParameters& p) {
  constexpr int64_t kTiles = R::kPanelTiles;
  constexpr int64_t kMostPanelBlocks = kMostPanelColumns / kBlock;
  alignas(64) uint8_t lines[kMostPanelBlocks * 16 * kLineBytes];
  alignas(64) float floats[kMostPanelBlocks * kMostFloats * kTileRows];
  alignas(64) float sums[kMostChunkRows][kTiles][kTileRows];
  alignas(64) uint8_t chunk_data[kMostChunkBytes + kChunkSlack];
  const int64_t planes = format.words ? 1 : a.planes, all_blocks = w.k / kBlock;
  const int64_t dwords = kernel.lines + 1 + format.offsets;
  // As many tiles share the panel: with two of them half the columns.
  const int64_t stride =
      clamp_to(p.k_block / kTiles / kSuperBlock * kSuperBlock, kSuperBlock, kMostPanelColumns / kTiles) / kBlock;
  const int64_t most = p.token_tile > 0 && p.token_tile < kernel.rows ? p.token_tile : kernel.rows;
  // A range does not depend on the tokens, which may be a thread's share: the order of sums would. Ranges are whole
  // super-blocks, about equally many, and a chunk holds at least one token of one.
  const int64_t wanted = p.chunk_bytes / (4 * dwords) / planes, super = kSuperBlock / kBlock;
  const int64_t all = (all_blocks + super - 1) / super * super;  // whole rows, where a chunk holds enough of them
  const int64_t most_blocks = clamp_to(wanted / all_blocks >= kLeastChunkRows ? all : wanted / kRangeRows, super,
                                       kMostChunkBytes / (planes * 4 * dwords)) / super * super;
  const int64_t ranges = (all_blocks + most_blocks - 1) / most_blocks;
  const int64_t most_range = (all_blocks + ranges * super - 1) / (ranges * super) * super;
  for (int64_t range = 0; range < all_blocks; range += most_range) {
    const int64_t range_blocks = all_blocks - range < most_range ? all_blocks - range : most_range;
    const int64_t row_bytes = range_blocks * 4 * dwords;
    const int64_t fit = clamp_to(kMostChunkBytes / row_bytes / planes * planes, planes, kMostChunkRows);
    const int64_t chunk_rows = clamp_to(p.chunk_bytes / row_bytes / planes * planes, most < fit ? most : fit, fit);
    const int64_t chunks = (tokens * planes + chunk_rows - 1) / chunk_rows;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t token = tokens * chunk / chunks, token_end = tokens * (chunk + 1) / chunks;
      const int64_t rows = (token_end - token) * planes, groups = (rows + most - 1) / most;
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t r = rows * group / groups, n = rows * (group + 1) / groups - r;
        kernel.gather(a, token * planes + r, n, range, range_blocks, format.offsets, chunk_data + r * row_bytes);
      }
      for (int64_t i = tile_begin; i < tile_end; i += kTiles) {
        const int64_t tiles = tile_end - i < kTiles ? 1 : kTiles;
        std::memset(sums, 0, static_cast<size_t>(rows) * sizeof sums[0]);
        for (int64_t block = 0; block < range_blocks; block += stride) {
          const int64_t blocks = range_blocks - block < stride ? range_blocks - block : stride;
          for (int64_t j = 0; j < tiles; ++j) {
            format.unpack(w, w.data + (i + j) * w.tile_bytes, range + block, blocks, p.prefetch_bytes,
                          lines + j * stride * kernel.panel_lines * kLineBytes,
                          floats + j * stride * (format.scales + format.offsets) * kTileRows);
          }
          // The weights of the next panel come while this one is multiplied, a part with each group. Into the second-level
          // cache: the first holds the panel in use. A block's share of a tile is near enough, wherever its scales lie.
          const bool same_tiles = block + stride < range_blocks;
          const int64_t next = same_tiles ? block + stride : 0, next_tile = same_tiles ? i : i + kTiles;
          const int64_t next_blocks = range_blocks - next < stride ? range_blocks - next : stride;
          const int64_t next_tiles = tile_end - next_tile < kTiles ? tile_end - next_tile : kTiles;  // may be none
          const int64_t block_bytes = p.prefetch_bytes > 0 ? w.tile_bytes / all_blocks : 0;
          for (int64_t group = 0; group < groups; ++group) {
            const int64_t r = rows * group / groups, n = rows * (group + 1) / groups - r;
            const int64_t bytes = next_blocks * block_bytes, end = bytes * (group + 1) / groups;
            for (int64_t j = 0; j < next_tiles; ++j) {
              const uint8_t* from = w.data + (next_tile + j) * w.tile_bytes + (range + next) * block_bytes;
              for (int64_t at = bytes * group / groups; at < end; at += kLineBytes) __builtin_prefetch(from + at, 0, 2);
            }
            kernel.multiply(tiles, n, lines, floats, stride, blocks, chunk_data + r * row_bytes + block * 4 * dwords * n,
                            sums[r][0]);
          }
        }
        for (int64_t j = 0; j < tiles; ++j) {
          store_panel_tile<kTiles>(sums, j, token, token_end, planes, w, i + j, range > 0, bias, y, ldy);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kbench
