// Q5_0, Q5_1, Q5_K: nibbles, and a line of top bits per block. See format.h.
#pragma once
#include "format.h"

namespace kbench {
namespace {

// Bit `quad` of each byte of `top`, as bit 4.
template <class R, int quad>
inline typename R::Int fifth_bit(typename R::Int top) {
  if constexpr (quad < 4) {
    return R::and_(R::template left<4 - quad>(top), R::bytes(16));
  } else if constexpr (quad == 4) {
    return R::and_(top, R::bytes(16));
  } else {
    return R::and_(R::template right<quad - 4>(top), R::bytes(16));
  }
}

template <class R, int unit>
inline void unpack_five_bits(typename R::Int top, typename R::Int* w) {
  w[0] = R::or_(w[0], fifth_bit<R, unit>(top));
  w[1] = R::or_(w[1], fifth_bit<R, 4 + unit>(top));
}

// Part `unit` of a block: four nibble lines, then the line of top bits. `lines` at the first row of the register.
template <class R>
inline void unpack_five_bits(const uint8_t* lines, int unit, typename R::Int* w) {
  unpack_nibbles<R>(lines + unit * kLineBytes, w);
  const typename R::Int top = R::load(lines + 4 * kLineBytes);
  switch (unit) {  // a constant where this is inlined
    case 0: return unpack_five_bits<R, 0>(top, w);
    case 1: return unpack_five_bits<R, 1>(top, w);
    case 2: return unpack_five_bits<R, 2>(top, w);
    default: return unpack_five_bits<R, 3>(top, w);
  }
}

inline void prefetch_five_bits(const uint8_t* lines, int unit, int64_t ahead) {
  prefetch(lines + unit * kLineBytes + ahead);
  if (unit == 0) prefetch(lines + 4 * kLineBytes + ahead);
}

template <class R>
struct Q5_0 : NibbleParts {
  static constexpr int kMost = 31, kZero = 16, kGroups = 1, kBlocks = 1;
  static constexpr bool kSigned = false, kMinimum = false, kIntegerScales = false;
  const uint8_t* quants;
  const uint8_t* d;
  int64_t ahead, to_scales;

  Q5_0(const uint8_t* tile, int64_t k, int64_t block, int reg, int64_t ahead)
      : quants(tile + block * kFiveBitBlockBytes + reg * 4 * R::kRows),
        d(tile + k / kBlock * kFiveBitBlockBytes + block * kHalvesBytes + reg * 2 * R::kRows),
        ahead(ahead),
        to_scales(scales_ahead(ahead, k / kBlock, kFiveBitBlockBytes, kHalvesBytes)) {}
  template <int H>
  void begin() {
    prefetch(d + to_scales);
  }
  typename R::Float scale(int, int, int h) const { return R::halves(d + h * 2 * R::kRows); }
  void unpack(int, int unit, int h, typename R::Int* w) const {
    if (h == 0) prefetch_five_bits(quants, unit, ahead);
    unpack_five_bits<R>(quants + h * 4 * R::kRows, unit, w);
  }
  void advance() {
    quants += kFiveBitBlockBytes;
    d += kHalvesBytes;
  }
};

template <class R>
struct Q5_1 : NibbleParts {
  static constexpr int kMost = 31, kZero = 0, kGroups = 1, kBlocks = 1;
  static constexpr bool kSigned = false, kMinimum = true, kIntegerScales = false;
  const uint8_t* halves;
  const uint8_t* quants;
  int64_t ahead;

  Q5_1(const uint8_t* tile, int64_t, int64_t block, int reg, int64_t ahead)
      : halves(tile + block * kQ5_1BlockBytes + reg * 2 * R::kRows),
        quants(tile + block * kQ5_1BlockBytes + 2 * kHalvesBytes + reg * 4 * R::kRows),
        ahead(ahead) {}
  template <int H>
  void begin() {
    prefetch(halves + ahead);
  }
  typename R::Float scale(int, int, int h) const { return R::halves(halves + h * 2 * R::kRows); }
  typename R::Float minimum(int, int, int h) const { return R::halves(halves + kHalvesBytes + h * 2 * R::kRows); }
  void unpack(int, int unit, int h, typename R::Int* w) const {
    if (h == 0) prefetch_five_bits(quants, unit, ahead);
    unpack_five_bits<R>(quants + h * 4 * R::kRows, unit, w);
  }
  void advance() {
    halves += kQ5_1BlockBytes;
    quants += kQ5_1BlockBytes;
  }
};

template <class R>
struct Q5_K : NibbleParts {
  static constexpr int kMost = 31, kZero = 0, kGroups = 1, kBlocks = 8;
  static constexpr bool kSigned = false, kMinimum = true, kIntegerScales = false;
  const uint8_t* d;
  const uint8_t* scales;
  const uint8_t* quants;
  int64_t ahead;
  typename R::Float d_row[kTileRows / R::kRows], dmin_row[kTileRows / R::kRows];

  Q5_K(const uint8_t* tile, int64_t, int64_t block, int reg, int64_t ahead) : ahead(ahead) {
    const uint8_t* p = tile + block / 8 * kQ5_KBytes;
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
    const uint8_t* lines = quants + b * kFiveBitBlockBytes;
    if (h == 0) prefetch_five_bits(lines, unit, ahead);
    unpack_five_bits<R>(lines + h * 4 * R::kRows, unit, w);
  }
  void advance() {
    d += kQ5_KBytes;
    scales += kQ5_KBytes;
    quants += kQ5_KBytes;
  }
};

}  // namespace
}  // namespace kbench
