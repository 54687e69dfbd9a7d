// Few tokens: weights are multiplied as they are unpacked from the lines of a tile, in the order of memory.
//
// Per block of 32 weights, for T activation rows (tokens times planes) and H registers of weight rows:
//   acc[t][row] += sum over groups g of scale[g][row] * scale_x[t] * dot[g][t][row]  +  offset * sum_x
// where dot is an integer sum of products, and offset = minimum - zero * scale. With s the sum of x over the block and s0
// that over its first 16, the offsets of two groups are  o0 s0 + o1 (s - s0) = o1 s + (o0 - o1) s0.
#pragma once
#include "../token_tiles.h"
#include "../unroll.h"
#include "format.h"

namespace kbench {
namespace {

// Bytes that an ISA can only multiply unsigned are shifted into 0..255; the shift is one more zero point.
template <class R, class W>
constexpr int zero_point() {
  return W::kZero + (W::kSigned && R::kShiftsSigned ? 128 : 0);
}

// Offsets as they are multiplied with (s, s0). Returns how many there are.
template <class R, class W>
constexpr int n_offsets() {
  return zero_point<R, W>() == 0 && !W::kMinimum ? 0 : W::kGroups;
}

// What W's minima and `zero` make of one block.
template <class R, class W>
inline void block_offsets(const W& w, int b, int h, int zero, typename R::Float* offset) {
  typename R::Float o[W::kGroups];
  KBENCH_UNROLL
  for (int g = 0; g < W::kGroups; ++g) {
    if constexpr (W::kMinimum) {
      o[g] = w.minimum(b, g, h);
    } else {
      o[g] = R::multiply(w.scale(b, g, h), R::floats(static_cast<float>(-zero)));
    }
  }
  if constexpr (W::kGroups == 2) {
    offset[0] = o[1];
    offset[1] = R::subtract(o[0], o[1]);
  } else {
    offset[0] = o[0];
  }
}

template <class R, class W, int T, int H>
inline void multiply_lines(const uint8_t* tile, const Activation& a, int64_t row, int reg, int64_t ahead,
                           float (*out)[kTileRows]) {
  using Int = typename R::Int;
  using Float = typename R::Float;
  using Dots = typename R::template Dots<W::kMost, W::kSigned>;
  // A group's integer scale either multiplies its sums as they are widened, or its scale is a float like any other.
  constexpr bool kScaled = W::kIntegerScales && R::kScalesDots;
  constexpr int kDots = W::kGroups == 2 && !kScaled ? 2 : 1;
  constexpr int kOffsets = n_offsets<R, W>();
  constexpr int kGroupQuads = 8 / W::kGroups;
  constexpr int kGroupUnits = W::kUnits / W::kGroups;
  // Registers are unpacked together where that leaves room, so that they share a broadcast of activations.
  constexpr int kTogether = W::kQuads * H <= 4 ? H : 1;
  const int64_t blocks = a.k / kBlock;
  const int8_t* x = a.q + row * a.k;
  const float* scale_x = a.scale + row * blocks;
  const float* sum_x = a.sum + row * blocks * 2;
  W w(tile, a.k, 0, reg, ahead);
  Float acc[T][H];
  KBENCH_UNROLL
  for (int t = 0; t < T; ++t) {
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) acc[t][h] = R::zero();
  }
  for (int64_t step = 0; step < blocks; step += W::kBlocks) {
    w.template begin<H>();
    for (int b = 0; b < W::kBlocks; ++b) {
      Int dots[kDots][T][H];
      KBENCH_UNROLL
      for (int g = 0; g < W::kGroups; ++g) {
        KBENCH_UNROLL
        for (int first = 0; first < H; first += kTogether) {
          Int sum[T][kTogether];
          KBENCH_UNROLL
          for (int unit = 0; unit < kGroupUnits; ++unit) {
            Int quads[kTogether][W::kQuads];
            KBENCH_UNROLL
            for (int h = 0; h < kTogether; ++h) w.unpack(b, g * kGroupUnits + unit, first + h, quads[h]);
            KBENCH_UNROLL
            for (int i = 0; i < W::kQuads; ++i) {
              const int at = unit * W::kQuads + i, fit = at % Dots::kFit;
              KBENCH_UNROLL
              for (int t = 0; t < T; ++t) {
                const Int values = R::broadcast(x + t * a.k + 4 * W::quad(g * kGroupUnits + unit, i));
                KBENCH_UNROLL
                for (int h = 0; h < kTogether; ++h) {
                  sum[t][h] = fit == 0 ? Dots::first(quads[h][i], values) : Dots::next(sum[t][h], quads[h][i], values);
                  if (fit != Dots::kFit - 1 && at != kGroupQuads - 1) continue;
                  Int wide;
                  if constexpr (kScaled) {
                    wide = Dots::widen_scaled(sum[t][h], w.pairs(b, g, first + h));
                  } else {
                    wide = Dots::widen(sum[t][h]);
                  }
                  Int& total = dots[kDots == 2 ? g : 0][t][first + h];
                  total = at / Dots::kFit == 0 && (g == 0 || kDots == 2) ? wide : R::add_int32(total, wide);
                  R::settle(total);
                }
              }
            }
          }
        }
      }
      Float scale[kDots][H], offset[H][2];
      KBENCH_UNROLL
      for (int h = 0; h < H; ++h) {
        KBENCH_UNROLL
        for (int g = 0; g < kDots; ++g) {
          if constexpr (kScaled) {
            scale[g][h] = w.step(h);
          } else {
            scale[g][h] = w.scale(b, g, h);
          }
        }
        if constexpr (kOffsets > 0) block_offsets<R, W>(w, b, h, zero_point<R, W>(), offset[h]);
      }
      KBENCH_UNROLL
      for (int t = 0; t < T; ++t) {
        const Float sx = R::floats(scale_x[t * blocks]);
        KBENCH_UNROLL
        for (int g = 0; g < kDots; ++g) {
          KBENCH_UNROLL
          for (int h = 0; h < H; ++h) {
            acc[t][h] = R::multiply_add(R::to_float(dots[g][t][h]), R::multiply(scale[g][h], sx), acc[t][h]);
          }
        }
        KBENCH_UNROLL
        for (int s = 0; s < kOffsets; ++s) {
          const Float sum = R::floats(sum_x[t * blocks * 2 + s]);
          KBENCH_UNROLL
          for (int h = 0; h < H; ++h) acc[t][h] = R::multiply_add(offset[h][s], sum, acc[t][h]);
        }
      }
      x += kBlock;
      scale_x += 1;
      sum_x += 2;
    }
    w.advance();
  }
  KBENCH_UNROLL
  for (int t = 0; t < T; ++t) {
    KBENCH_UNROLL
    for (int h = 0; h < H; ++h) R::store_floats(out[t] + R::kRows * (reg + h), acc[t][h]);
  }
}

// All rows of a tile times T activation rows: all registers in one pass where their sums fit.
template <class R, class W>
struct LineKernel {
  static constexpr int kMaxRows = R::kLineRows;
  static constexpr bool kQuantised = true;
  template <int T>
  static inline void run(const uint8_t* tile, const Activation& a, int64_t row, int64_t ahead,
                         float (*out)[kTileRows]) {
    constexpr int kRegisters = kTileRows / R::kRows;
    constexpr int H = kRegisters < R::kLineRegisters ? kRegisters : R::kLineRegisters;
    KBENCH_UNROLL
    for (int reg = 0; reg < kRegisters; reg += H) multiply_lines<R, W, T, H>(tile, a, row, reg, ahead, out);
  }
};

}  // namespace
}  // namespace kbench
