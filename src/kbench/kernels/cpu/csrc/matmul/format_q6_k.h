// Q6_K: four low bits in nibble lines, two high bits in a line of their own. See format.h.
#pragma once
#include "format.h"

namespace kbench {
namespace {

template <class R>
struct Q6_K {
  static constexpr int kMost = 63, kZero = 32, kGroups = 2, kBlocks = 8, kUnits = 2, kQuads = 4;
  static constexpr bool kSigned = false, kMinimum = false, kIntegerScales = true;
  static constexpr int quad(int unit, int i) { return 4 * unit + i; }
  const uint8_t* scales;
  const uint8_t* quants;
  const uint8_t* d;
  int64_t ahead, to_scales;
  typename R::Float d_row[kTileRows / R::kRows];

  Q6_K(const uint8_t* tile, int64_t k, int64_t block, int reg, int64_t ahead)
      : scales(tile + block / 8 * kQ6_KBytes + reg * R::kRows),
        quants(tile + block / 8 * kQ6_KBytes + kQ6_KQuants + reg * 4 * R::kRows),
        d(tile + k / kSuperBlock * kQ6_KBytes + block / 8 * kHalvesBytes + reg * 2 * R::kRows),
        ahead(ahead),
        to_scales(scales_ahead(ahead, k / kSuperBlock, kQ6_KBytes, kHalvesBytes)) {}
  template <int H>
  void begin() {
    prefetch(d + to_scales);
    for (int h = 0; h < H; ++h) d_row[h] = R::halves(d + h * 2 * R::kRows);
  }
  typename R::Float step(int h) const { return d_row[h]; }
  typename R::Float scale(int b, int g, int h) const {
    return R::multiply(d_row[h], R::int8s(scales + (2 * b + g) * kQ6_KScalesBytes + h * R::kRows));
  }
  typename R::Int pairs(int b, int g, int h) const {
    return R::int8_pairs(scales + (2 * b + g) * kQ6_KScalesBytes + h * R::kRows);
  }
  void unpack(int b, int unit, int h, typename R::Int* w) const {
    const uint8_t* lines = quants + (2 * b + unit) * kQ6_KGroupBytes;
    if (h == 0) {
      for (int l = 0; l < 3; ++l) prefetch(lines + l * kLineBytes + ahead);
    }
    const typename R::Int low = R::bytes(0x0f), high = R::bytes(0x30);
    const typename R::Int a0 = R::load(lines + h * 4 * R::kRows), a1 = R::load(lines + kLineBytes + h * 4 * R::kRows);
    const typename R::Int c = R::load(lines + 2 * kLineBytes + h * 4 * R::kRows);
    w[0] = R::or_(R::and_(a0, low), R::and_(R::template left<4>(c), high));
    w[1] = R::or_(R::and_(a1, low), R::and_(R::template left<2>(c), high));
    w[2] = R::or_(R::and_(R::template right<4>(a0), low), R::and_(c, high));
    w[3] = R::or_(R::and_(R::template right<4>(a1), low), R::and_(R::template right<2>(c), high));
  }
  void advance() {
    scales += kQ6_KBytes;
    quants += kQ6_KBytes;
    d += kHalvesBytes;
  }
};

}  // namespace
}  // namespace kbench
