// IQ4_NL, IQ4_XS, MXFP4: nibbles that index a table of 16 values. See format.h.
#pragma once
#include "format.h"

namespace kbench {
namespace {

template <class R>
inline void look_up_nibbles(const uint8_t* line, typename R::Int table, typename R::Int* w) {
  unpack_nibbles<R>(line, w);
  w[0] = R::look_up(table, w[0]);
  w[1] = R::look_up(table, w[1]);
}

template <class R>
struct IQ4_NL : NibbleParts {
  static constexpr int kMost = 127, kZero = 0, kGroups = 1, kBlocks = 1;
  static constexpr bool kSigned = true, kMinimum = false, kIntegerScales = false;
  const uint8_t* quants;
  const uint8_t* d;
  int64_t ahead, to_scales;
  typename R::Int values = R::table(kIq4Values);

  IQ4_NL(const uint8_t* tile, int64_t k, int64_t block, int reg, int64_t ahead)
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
    look_up_nibbles<R>(line + h * 4 * R::kRows, values, w);
  }
  void advance() {
    quants += kNibbleBlockBytes;
    d += kHalvesBytes;
  }
};

template <class R>
struct IQ4_XS : NibbleParts {
  static constexpr int kMost = 127, kZero = 0, kGroups = 1, kBlocks = 8;
  static constexpr bool kSigned = true, kMinimum = false, kIntegerScales = false;
  const uint8_t* scales;
  const uint8_t* quants;
  const uint8_t* d;
  int64_t ahead, to_scales;
  typename R::Int values = R::table(kIq4Values);
  typename R::Float d_row[kTileRows / R::kRows];

  IQ4_XS(const uint8_t* tile, int64_t k, int64_t block, int reg, int64_t ahead)
      : scales(tile + block / 8 * kIQ4_XSBytes + reg * R::kRows),
        quants(tile + block / 8 * kIQ4_XSBytes + kIQ4_XSQuants + reg * 4 * R::kRows),
        d(tile + k / kSuperBlock * kIQ4_XSBytes + block / 8 * kHalvesBytes + reg * 2 * R::kRows),
        ahead(ahead),
        to_scales(scales_ahead(ahead, k / kSuperBlock, kIQ4_XSBytes, kHalvesBytes)) {}
  template <int H>
  void begin() {
    prefetch(d + to_scales);
    for (int h = 0; h < H; ++h) d_row[h] = R::halves(d + h * 2 * R::kRows);
  }
  typename R::Float scale(int b, int, int h) const {
    return R::multiply(d_row[h], R::int8s(scales + b * kIQ4_XSScalesBytes + h * R::kRows));
  }
  void unpack(int b, int unit, int h, typename R::Int* w) const {
    const uint8_t* line = quants + b * kNibbleBlockBytes + unit * kLineBytes;
    if (h == 0) prefetch(line + ahead);
    look_up_nibbles<R>(line + h * 4 * R::kRows, values, w);
  }
  void advance() {
    scales += kIQ4_XSBytes;
    quants += kIQ4_XSBytes;
    d += kHalvesBytes;
  }
};

// Twelve is added to its values: unsigned bytes of five bits are multiplied faster than signed ones of eight.
template <class R>
struct MXFP4 : NibbleParts {
  static constexpr int kMost = 24, kZero = 12, kGroups = 1, kBlocks = 1;
  static constexpr bool kSigned = false, kMinimum = false, kIntegerScales = false;
  const uint8_t* quants;
  const uint8_t* e;
  int64_t ahead, to_scales;
  typename R::Int values = R::add_bytes(R::table(kMxfp4Values), R::bytes(kZero));

  MXFP4(const uint8_t* tile, int64_t k, int64_t block, int reg, int64_t ahead)
      : quants(tile + block * kNibbleBlockBytes + reg * 4 * R::kRows),
        e(tile + k / kBlock * kNibbleBlockBytes + block * kExponentsBytes + reg * R::kRows),
        ahead(ahead),
        to_scales(scales_ahead(ahead, k / kBlock, kNibbleBlockBytes, kExponentsBytes)) {}
  template <int H>
  void begin() {
    prefetch(e + to_scales);
  }
  typename R::Float scale(int, int, int h) const { return R::exponents(e + h * R::kRows); }
  void unpack(int, int unit, int h, typename R::Int* w) const {
    const uint8_t* line = quants + unit * kLineBytes;
    if (h == 0) prefetch(line + ahead);
    look_up_nibbles<R>(line + h * 4 * R::kRows, values, w);
  }
  void advance() {
    quants += kNibbleBlockBytes;
    e += kExponentsBytes;
  }
};

}  // namespace
}  // namespace kbench
