// A format's part of the panel kernels: its weights as words and as bytes. panel.h says what a panel is.
#pragma once
#include "line_kernel.h"
#include "panel.h"

namespace kbench {
namespace {

template <class R, class W>
struct WordPanel {
  static constexpr bool kWords = true, kScaled = false;
  static constexpr int64_t kBlockBytes = 16 * kLineBytes;
  static constexpr int kScales = 1;
  static constexpr int kOffsets = W::kMinimum ? W::kGroups : 0;

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
};

template <class R, class W>
struct BytePanel {
  static constexpr bool kWords = false, kScaled = W::kIntegerScales && R::kScalesDots;
  static constexpr int64_t kBlockBytes = (8 + (kScaled ? W::kGroups : 0)) * kLineBytes;
  static constexpr int kScales = kScaled ? 1 : W::kGroups;
  static constexpr int kOffsets = n_offsets<R, W>();

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
    if constexpr (kScaled) {
      for (int g = 0; g < W::kGroups; ++g) R::store(lines + (8 + g) * kLineBytes + h * 4 * R::kRows, w.pairs(b, g, 0));
      R::store_floats(floats + h * R::kRows, w.step(0));
    } else {
      for (int g = 0; g < W::kGroups; ++g) R::store_floats(floats + g * kTileRows + h * R::kRows, w.scale(b, g, 0));
    }
    if constexpr (kOffsets > 0) {
      typename R::Float offset[2];
      block_offsets<R, W>(w, b, 0, zero_point<R, W>(), offset);
      for (int s = 0; s < kOffsets; ++s) R::store_floats(floats + (kScales + s) * kTileRows + h * R::kRows, offset[s]);
    }
  }
};

template <class R, class W, class P>
void unpack_panel(const PackedMatrix& w, const uint8_t* tile, int64_t first, int64_t blocks, int64_t ahead,
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
void multiply_panels_of(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin, int64_t tile_end,
                        const float* bias, float* y, int64_t ldy, const MatmulParameters& p) {
  static_assert(P::kScales == 1 || P::kOffsets == 2, "a shape that panels.cpp has");
  const PanelFormat format{unpack_panel<R, W, P>, P::kWords, P::kScaled, W::kMost, P::kScales, P::kOffsets};
  KBENCH_ISA::multiply_panels(format, w, a, tokens, tile_begin, tile_end, bias, y, ldy, p);
}

}  // namespace
}  // namespace kbench
