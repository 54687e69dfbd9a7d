// Q2_K, Q3_K: two bits of each weight in crumb lines, a third in a bit line. See format.h.
#pragma once
#include "format.h"

namespace kbench {
namespace {

// The four quads of a group of 16.
template <class R>
inline void unpack_crumbs(const uint8_t* line, typename R::Int* w) {
  const typename R::Int raw = R::load(line), mask = R::bytes(3);
  w[0] = R::and_(raw, mask);
  w[1] = R::and_(R::template right<2>(raw), mask);
  w[2] = R::and_(R::template right<4>(raw), mask);
  w[3] = R::and_(R::template right<6>(raw), mask);
}

template <class R>
struct Q2_K {
  static constexpr int kMost = 3, kZero = 0, kGroups = 2, kBlocks = 8, kUnits = 2, kQuads = 4;
  static constexpr bool kSigned = false, kMinimum = true, kIntegerScales = true;
  static constexpr int quad(int unit, int i) { return 4 * unit + i; }
  const uint8_t* d;
  const uint8_t* scales;
  const uint8_t* quants;
  int64_t ahead;
  typename R::Float d_row[kTileRows / R::kRows], dmin_row[kTileRows / R::kRows];

  Q2_K(const uint8_t* tile, int64_t, int64_t block, int reg, int64_t ahead) : ahead(ahead) {
    const uint8_t* p = tile + block / 8 * kQ2_KBytes;
    d = p + reg * 2 * R::kRows;
    scales = p + kQ2_KScales + reg * R::kRows;
    quants = p + kQ2_KQuants + reg * 4 * R::kRows;
  }
  template <int H>
  void begin() {
    prefetch(d + ahead);
    for (int h = 0; h < H; ++h) {
      d_row[h] = R::halves(d + h * 2 * R::kRows);
      dmin_row[h] = R::subtract(R::zero(), R::halves(d + kHalvesBytes + h * 2 * R::kRows));
    }
  }
  typename R::Float step(int h) const { return d_row[h]; }
  typename R::Float scale(int b, int g, int h) const {
    return R::multiply(d_row[h], R::low_nibbles(scales + (2 * b + g) * kQ2_KScalesBytes + h * R::kRows));
  }
  typename R::Float minimum(int b, int g, int h) const {
    return R::multiply(dmin_row[h], R::high_nibbles(scales + (2 * b + g) * kQ2_KScalesBytes + h * R::kRows));
  }
  typename R::Int pairs(int b, int g, int h) const {
    return R::nibble_pairs(scales + (2 * b + g) * kQ2_KScalesBytes + h * R::kRows);
  }
  void unpack(int b, int unit, int h, typename R::Int* w) const {
    const uint8_t* line = quants + (2 * b + unit) * kQ2_KGroupBytes;
    if (h == 0) prefetch(line + ahead);
    unpack_crumbs<R>(line + h * 4 * R::kRows, w);
  }
  void advance() {
    d += kQ2_KBytes;
    scales += kQ2_KBytes;
    quants += kQ2_KBytes;
  }
};

// Bits 4 * unit + i of each byte of `top`, as bit 2.
template <class R, int unit>
inline void add_third_bits(typename R::Int top, typename R::Int* w) {
  const typename R::Int mask = R::bytes(4);
  if constexpr (unit == 0) {
    w[0] = R::or_(w[0], R::and_(R::template left<2>(top), mask));
    w[1] = R::or_(w[1], R::and_(R::template left<1>(top), mask));
    w[2] = R::or_(w[2], R::and_(top, mask));
    w[3] = R::or_(w[3], R::and_(R::template right<1>(top), mask));
  } else {
    w[0] = R::or_(w[0], R::and_(R::template right<2>(top), mask));
    w[1] = R::or_(w[1], R::and_(R::template right<3>(top), mask));
    w[2] = R::or_(w[2], R::and_(R::template right<4>(top), mask));
    w[3] = R::or_(w[3], R::and_(R::template right<5>(top), mask));
  }
}

template <class R>
struct Q3_K {
  static constexpr int kMost = 7, kZero = 4, kGroups = 2, kBlocks = 8, kUnits = 2, kQuads = 4;
  static constexpr bool kSigned = false, kMinimum = false, kIntegerScales = true;
  static constexpr int quad(int unit, int i) { return 4 * unit + i; }
  const uint8_t* scales;
  const uint8_t* quants;
  const uint8_t* d;
  int64_t ahead, to_scales;
  typename R::Float d_row[kTileRows / R::kRows];

  Q3_K(const uint8_t* tile, int64_t k, int64_t block, int reg, int64_t ahead)
      : scales(tile + block / 8 * kQ3_KBytes + reg * R::kRows),
        quants(tile + block / 8 * kQ3_KBytes + kQ3_KQuants + reg * 4 * R::kRows),
        d(tile + k / kSuperBlock * kQ3_KBytes + block / 8 * kHalvesBytes + reg * 2 * R::kRows),
        ahead(ahead),
        to_scales(scales_ahead(ahead, k / kSuperBlock, kQ3_KBytes, kHalvesBytes)) {}
  template <int H>
  void begin() {
    prefetch(d + to_scales);
    for (int h = 0; h < H; ++h) d_row[h] = R::halves(d + h * 2 * R::kRows);
  }
  typename R::Float step(int h) const { return d_row[h]; }
  typename R::Float scale(int b, int g, int h) const {
    return R::multiply(d_row[h], R::int8s(scales + (2 * b + g) * kQ3_KScalesBytes + h * R::kRows));
  }
  typename R::Int pairs(int b, int g, int h) const {
    return R::int8_pairs(scales + (2 * b + g) * kQ3_KScalesBytes + h * R::kRows);
  }
  void unpack(int b, int unit, int h, typename R::Int* w) const {
    const uint8_t* lines = quants + b * kQ3_KBlockBytes;
    if (h == 0) {
      prefetch(lines + unit * kLineBytes + ahead);
      if (unit == 1) prefetch(lines + 2 * kLineBytes + ahead);
    }
    unpack_crumbs<R>(lines + unit * kLineBytes + h * 4 * R::kRows, w);
    const typename R::Int top = R::load(lines + 2 * kLineBytes + h * 4 * R::kRows);
    if (unit == 0) {  // a constant where this is inlined
      add_third_bits<R, 0>(top, w);
    } else {
      add_third_bits<R, 1>(top, w);
    }
  }
  void advance() {
    scales += kQ3_KBytes;
    quants += kQ3_KBytes;
    d += kHalvesBytes;
  }
};

}  // namespace
}  // namespace kbench
