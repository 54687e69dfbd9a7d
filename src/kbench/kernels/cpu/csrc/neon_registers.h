// What the Arm NEON instruction sets share: registers of four rows. avx2/registers.h says what each name is.
#pragma once
#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace kbench {
namespace {

struct NeonRegisters {
  using Int = int32x4_t;
  using Float = float32x4_t;
  static constexpr int kRows = 4;
  // Per pass of a line kernel 4 rows of activations x 2 registers: 8 integer and 8 float sums, of 32 registers.
  static constexpr int kLineRows = 4;
  static constexpr int kLineRegisters = 2;
  // 16 integer sums, 4 registers of weights; float sums are in memory.
  static constexpr int kPanelRows = 4;
  static constexpr int kPanelTiles = 1;
  static constexpr int kFloatRows = 6;
  static constexpr bool kShiftsSigned = false;  // sdot multiplies signed bytes; unsigned weights are at most 63
  static constexpr bool kScalesDots = false;
  static constexpr int kMostOfBytePanel = 255;
  // Products of int16 run at a quarter of sdot's rate: two planes of int8 are twice as fast as words.
  static constexpr bool kHasWords = false;
  static constexpr bool kHasLines = true;
  // Not measured: no such machine was at hand.
  static constexpr int64_t panel_tokens(int, int planes) { return planes == 1 ? 16 : 8; }

  static Int load(const uint8_t* p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
  static void store(uint8_t* p, Int v) { vst1q_u8(p, vreinterpretq_u8_s32(v)); }
  static Int zero_int() { return vdupq_n_s32(0); }
  static Int bytes(int value) { return vreinterpretq_s32_u8(vdupq_n_u8(static_cast<uint8_t>(value))); }
  static Int and_(Int a, Int b) { return vandq_s32(a, b); }
  static Int or_(Int a, Int b) { return vorrq_s32(a, b); }
  template <int n>
  static Int right(Int a) {
    return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(a), n));
  }
  template <int n>
  static Int left(Int a) {
    return vreinterpretq_s32_u16(vshlq_n_u16(vreinterpretq_u16_s32(a), n));
  }
  static Int add_int32(Int a, Int b) { return vaddq_s32(a, b); }
  static Int add_bytes(Int a, Int b) {
    return vreinterpretq_s32_u8(vaddq_u8(vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(b)));
  }
  static Int table(const int8_t* values) { return vreinterpretq_s32_s8(vld1q_s8(values)); }
  static Int look_up(Int table, Int nibbles) {
    return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(nibbles)));
  }
  static Int broadcast(const void* p) {
    int32_t dword;
    std::memcpy(&dword, p, sizeof dword);
    return vdupq_n_s32(dword);
  }

  static Float broadcast_float(const void* p) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return vdupq_n_f32(value);
  }
  static Float zero() { return vdupq_n_f32(0.0f); }
  static Float floats(float value) { return vdupq_n_f32(value); }
  static Float load_floats(const float* p) { return vld1q_f32(p); }
  static void store_floats(float* p, Float v) { vst1q_f32(p, v); }
  static Float multiply(Float a, Float b) { return vmulq_f32(a, b); }
  static Float subtract(Float a, Float b) { return vsubq_f32(a, b); }
  static Float add(Float a, Float b) { return vaddq_f32(a, b); }
  static Float multiply_add(Float a, Float b, Float c) { return vfmaq_f32(c, a, b); }
  static Float to_float(Int v) { return vcvtq_f32_s32(v); }

  static Float halves(const uint8_t* p) {
    uint16x4_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return vcvt_f32_f16(vreinterpret_f16_u16(bits));
  }
  static Float bfloats(const uint8_t* p) {
    uint16x4_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return vreinterpretq_f32_u32(vshll_n_u16(bits, 16));
  }
  static Float singles(const uint8_t* p) { return vreinterpretq_f32_u8(vld1q_u8(p)); }
  static Float uint8s(const uint8_t* p) { return vcvtq_f32_u32(four(p)); }
  static Float int8s(const uint8_t* p) {
    int32_t dword;
    std::memcpy(&dword, p, sizeof dword);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(dword))))));
  }
  static Float low_nibbles(const uint8_t* p) { return vcvtq_f32_u32(vandq_u32(four(p), vdupq_n_u32(15))); }
  static Float high_nibbles(const uint8_t* p) { return vcvtq_f32_u32(vshrq_n_u32(four(p), 4)); }
  // 2^(e - 128): the product of two halves of the exponent, both normal numbers.
  static Float exponents(const uint8_t* p) {
    const uint32x4_t e = four(p), bias = vdupq_n_u32(63);
    const uint32x4_t low = vaddq_u32(vshrq_n_u32(e, 1), bias);
    const uint32x4_t high = vaddq_u32(vshrq_n_u32(vaddq_u32(e, vdupq_n_u32(1)), 1), bias);
    return vmulq_f32(vreinterpretq_f32_u32(vshlq_n_u32(low, 23)), vreinterpretq_f32_u32(vshlq_n_u32(high, 23)));
  }

  static void settle(Int&) {}

  // sdot adds four products of signed bytes in int32: nothing saturates, nothing is widened.
  template <int most, bool is_signed>
  struct Dots {
    static_assert(is_signed || most <= 127, "unsigned weights must be valid signed bytes");
    static constexpr int kFit = 8;
    static Int first(Int w, Int x) { return next(vdupq_n_s32(0), w, x); }
    static Int next(Int sum, Int w, Int x) {
      return vdotq_s32(sum, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
    }
    static Int widen(Int sum) { return sum; }
  };

 private:
  static uint32x4_t four(const uint8_t* p) {
    uint32_t dword;
    std::memcpy(&dword, p, sizeof dword);
    return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(dword)))));
  }
};

}  // namespace
}  // namespace kbench
#endif
