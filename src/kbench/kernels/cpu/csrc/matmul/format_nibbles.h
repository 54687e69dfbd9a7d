// Q4_0, Q4_1, Q4_K: unsigned nibbles. See format.h.
#pragma once
#include "format.h"

namespace kbench {
namespace {

template <class R>
struct Q4_0 : NibbleParts {
  static constexpr int kMost = 15, kZero = 8, kGroups = 1, kBlocks = 1;
  static constexpr bool kSigned = false, kMinimum = false, kIntegerScales = false;
  const uint8_t* quants;
  const uint8_t* d;
  int64_t ahead, to_scales;

  Q4_0(const uint8_t* tile, int64_t k, int64_t block, int reg, int64_t ahead)
      : quants(tile + block * kNibbleBlockBytes + reg * 4 * R::kRows),
        d(tile + k / kBlock * kNibbleBlockBytes + block * kHalvesBytes + reg * 2 * R::kRows),
        ahead(ahead),
        to_scales(scales_ahead(ahead, k / kBlock, kNibbleBlockBytes, kHalvesBytes)) {}
  template <int H>
  void begin() {
    prefetch(d + to_scales);
  }
  typename R::Float scale(int, int, int h) const { return R::halves(d + h * 2 * R::kRows); }
  void unpack(int, int unit, int h, typename R::Int* w) const {
    const uint8_t* line = quants + unit * kLineBytes;
    if (h == 0) prefetch(line + ahead);
    unpack_nibbles<R>(line + h * 4 * R::kRows, w);
  }
  void advance() {
    quants += kNibbleBlockBytes;
    d += kHalvesBytes;
  }
};

template <class R>
struct Q4_1 : NibbleParts {
  static constexpr int kMost = 15, kZero = 0, kGroups = 1, kBlocks = 1;
  static constexpr bool kSigned = false, kMinimum = true, kIntegerScales = false;
  const uint8_t* halves;
  const uint8_t* quants;
  int64_t ahead;

  Q4_1(const uint8_t* tile, int64_t, int64_t block, int reg, int64_t ahead)
      : halves(tile + block * kQ4_1BlockBytes + reg * 2 * R::kRows),
        quants(tile + block * kQ4_1BlockBytes + 2 * kHalvesBytes + reg * 4 * R::kRows),
        ahead(ahead) {}
  template <int H>
  void begin() {
    prefetch(halves + ahead);
  }
  typename R::Float scale(int, int, int h) const { return R::halves(halves + h * 2 * R::kRows); }
  typename R::Float minimum(int, int, int h) const { return R::halves(halves + kHalvesBytes + h * 2 * R::kRows); }
  void unpack(int, int unit, int h, typename R::Int* w) const {
    const uint8_t* line = quants + unit * kLineBytes;
    if (h == 0) prefetch(line + ahead);
    unpack_nibbles<R>(line + h * 4 * R::kRows, w);
  }
  void advance() {
    halves += kQ4_1BlockBytes;
    quants += kQ4_1BlockBytes;
  }
};

template <class R>
struct Q4_K : NibbleParts {
  static constexpr int kMost = 15, kZero = 0, kGroups = 1, kBlocks = 8;
  static constexpr bool kSigned = false, kMinimum = true, kIntegerScales = false;
  const uint8_t* d;
  const uint8_t* scales;
  const uint8_t* quants;
  int64_t ahead;
  typename R::Float d_row[kTileRows / R::kRows], dmin_row[kTileRows / R::kRows];

  Q4_K(const uint8_t* tile, int64_t, int64_t block, int reg, int64_t ahead) : ahead(ahead) {
    const uint8_t* p = tile + block / 8 * kQ4_KBytes;
    d = p + reg * 2 * R::kRows;
    scales = p + kQ4_KScales + reg * R::kRows;
    quants = p + kQ4_KQuants + reg * 4 * R::kRows;
  }
  template <int H>
  void begin() {
    for (int h = 0; h < H; ++h) {
      d_row[h] = R::halves(d + h * 2 * R::kRows);
      dmin_row[h] = R::subtract(R::zero(), R::halves(d + kHalvesBytes + h * 2 * R::kRows));
    }
  }
  typename R::Float scale(int b, int, int h) const {
    return R::multiply(d_row[h], R::uint8s(scales + b * kQ4_KScalesBytes + h * R::kRows));
  }
  typename R::Float minimum(int b, int, int h) const {
    return R::multiply(dmin_row[h], R::uint8s(scales + b * kQ4_KScalesBytes + kTileRows + h * R::kRows));
  }
  void unpack(int b, int unit, int h, typename R::Int* w) const {
    const uint8_t* line = quants + b * kNibbleBlockBytes + unit * kLineBytes;
    if (h == 0) prefetch(line + ahead);
    unpack_nibbles<R>(line + h * 4 * R::kRows, w);
  }
  void advance() {
    d += kQ4_KBytes;
    scales += kQ4_KBytes;
    quants += kQ4_KBytes;
  }
};

}  // namespace
}  // namespace kbench
