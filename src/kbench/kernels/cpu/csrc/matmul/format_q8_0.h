// Q8_0: signed bytes. See format.h.
#pragma once
#include "format.h"

namespace kbench {
namespace {

template <class R>
struct Q8_0 {
  static constexpr int kMost = 128, kZero = 0, kGroups = 1, kBlocks = 1, kUnits = 8, kQuads = 1;
  static constexpr bool kSigned = true, kMinimum = false, kIntegerScales = false;
  static constexpr int quad(int unit, int) { return unit; }
  const uint8_t* quants;
  const uint8_t* d;
  int64_t ahead, to_scales;

  Q8_0(const uint8_t* tile, int64_t k, int64_t block, int reg, int64_t ahead)
      : quants(tile + block * kByteBlockBytes + reg * 4 * R::kRows),
        d(tile + k / kBlock * kByteBlockBytes + block * kHalvesBytes + reg * 2 * R::kRows),
        ahead(ahead),
        to_scales(scales_ahead(ahead, k / kBlock, kByteBlockBytes, kHalvesBytes)) {}
  template <int H>
  void begin() {
    prefetch(d + to_scales);
  }
  typename R::Float scale(int, int, int h) const { return R::halves(d + h * 2 * R::kRows); }
  void unpack(int, int unit, int h, typename R::Int* w) const {
    const uint8_t* line = quants + unit * kLineBytes;
    if (h == 0) prefetch(line + ahead);
    w[0] = R::load(line + h * 4 * R::kRows);
  }
  void advance() {
    quants += kByteBlockBytes;
    d += kHalvesBytes;
  }
};

}  // namespace
}  // namespace kbench
