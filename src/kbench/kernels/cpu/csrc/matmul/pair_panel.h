// A byte panel for instructions that multiply two weight rows with two activation rows at once, as Arm's smmla does:
//   sum [2 x 2] += weights [2 rows x 8 columns] x activations [2 rows x 8 columns]
//
// Lines as in panel.h, but quads 2p and 2p + 1 of a row stand side by side, so that 16 bytes are
//   | quad 2p, row r | quad 2p + 1, row r | quad 2p, row r + 1 | quad 2p + 1, row r + 1 |
// and so do those of a token. The last of an odd number of tokens is multiplied twice and kept once.
#pragma once
#include "panel_kernel.h"
#include "panel_unpack.h"

namespace kbench {
namespace {

template <class R, class W>
struct PairPanel : BytePanel<R, W> {
  using Base = BytePanel<R, W>;
  static_assert(R::kRows == 4, "a register is two rows of two quads");

  static inline void unpack(const W& w, int b, int h, uint8_t* lines, float* floats) {
    using Int = typename R::Int;
    Base::unpack(w, b, h, lines, floats);
    KBENCH_UNROLL
    for (int line = 0; line < 8; line += 2) {
      uint8_t* first = lines + line * kLineBytes + h * 4 * R::kRows;
      const Int even = R::load(first), odd = R::load(first + kLineBytes);
      R::store(first, R::zip_low(even, odd));
      R::store(first + kLineBytes, R::zip_high(even, odd));
    }
  }
};

template <class R, int n_scales>
struct PairLines : ByteLines<R, 31, n_scales> {
  using Base = ByteLines<R, 31, n_scales>;
  static constexpr int place(int line, int t, int T) { return line / 2 * 2 * T + 2 * t + line % 2; }

  template <int T, int H>
  static inline void dots(const uint8_t* const* lines, const uint8_t* x, typename R::Int (*dots)[T][H]) {
    using Int = typename R::Int;
    constexpr int kPairs = (T + 1) / 2, kGroupLines = Base::kLines / Base::kScales;
    KBENCH_UNROLL
    for (int g = 0; g < Base::kScales; ++g) {
      Int sum[kPairs][H][2];  // rows 0, 1 and rows 2, 3 of a register
      KBENCH_UNROLL
      for (int pair = 0; pair < kPairs; ++pair) {
        KBENCH_UNROLL
        for (int h = 0; h < H; ++h) sum[pair][h][0] = sum[pair][h][1] = R::zero_int();
      }
      KBENCH_UNROLL
      for (int line = g * kGroupLines; line < (g + 1) * kGroupLines; line += 2) {
        KBENCH_UNROLL
        for (int pair = 0; pair < kPairs; ++pair) {
          const uint8_t* at = x + 4 * place(line, 2 * pair, T);
          const Int values = 2 * pair + 1 < T ? R::load(at) : R::load_half_twice(at);
          KBENCH_UNROLL
          for (int h = 0; h < H; ++h) {
            sum[pair][h][0] = R::pair_dots(sum[pair][h][0], load_line<R>(lines, line, h), values);
            sum[pair][h][1] = R::pair_dots(sum[pair][h][1], load_line<R>(lines, line + 1, h), values);
          }
        }
      }
      KBENCH_UNROLL
      for (int t = 0; t < T; ++t) {
        KBENCH_UNROLL
        for (int h = 0; h < H; ++h) {
          const Int* s = sum[t / 2][h];
          dots[g][t][h] = t % 2 == 0 ? R::unzip_even(s[0], s[1]) : R::unzip_odd(s[0], s[1]);
        }
      }
    }
  }
};

}  // namespace
}  // namespace kbench
