// Activations to planes of int8, the same bits as scalar/quantize.cpp.
#include "../matmul/kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include <cstring>

#include "../packed_layout.h"
#include "../quantized_range.h"

namespace kbench {
namespace {

// v becomes what rounding took.
inline void quantize_bytes(float32x4_t v[8], int8_t* q, float* scale, float* sum) {
  uint32x4_t largest = vdupq_n_u32(0);
  for (int i = 0; i < 8; ++i) largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(v[i])));
  const uint32_t bits = vmaxvq_u32(largest);
  if (bits < kSmallestBits || bits >= kInfinityBits) {
    const uint32_t value = bits < kSmallestBits ? 0 : kNanBits;
    std::memset(q, 0, kBlock);
    std::memcpy(scale, &value, sizeof value);
    std::memcpy(sum, &value, sizeof value);
    std::memcpy(sum + 1, &value, sizeof value);
    return;
  }
  float absmax;
  std::memcpy(&absmax, &bits, sizeof absmax);
  const float inverse = kByteMost / absmax;
  *scale = absmax / kByteMost;
  int32x4_t n[8];
  for (int i = 0; i < 8; ++i) n[i] = vcvtnq_s32_f32(vmulq_n_f32(v[i], inverse));  // nearest, ties to even
  int32_t half[2];
  for (int h = 0; h < 2; ++h) {
    half[h] = vaddvq_s32(vaddq_s32(vaddq_s32(n[4 * h], n[4 * h + 1]), vaddq_s32(n[4 * h + 2], n[4 * h + 3])));
    const int16x8_t low = vcombine_s16(vqmovn_s32(n[4 * h]), vqmovn_s32(n[4 * h + 1]));
    const int16x8_t high = vcombine_s16(vqmovn_s32(n[4 * h + 2]), vqmovn_s32(n[4 * h + 3]));
    vst1q_s8(q + 16 * h, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
  }
  for (int i = 0; i < 8; ++i) v[i] = vfmsq_f32(v[i], vcvtq_f32_s32(n[i]), vdupq_n_f32(*scale));
  sum[0] = *scale * static_cast<float>(half[0] + half[1]);
  sum[1] = *scale * static_cast<float>(half[0]);
}

void quantize(const Activation& a, int64_t token_begin, int64_t token_end) {
  if (a.q == nullptr) return;  // no kernel of this ISA reads words
  const int64_t blocks = (a.ldq == 0 ? a.k : a.ldq) / kBlock;
  for (int64_t t = token_begin; t < token_end; ++t) {
    for (int64_t block = 0; block < a.k / kBlock; ++block) {
      float32x4_t v[8];
      for (int i = 0; i < 8; ++i) v[i] = vld1q_f32(a.x + t * a.ldx + block * kBlock + 4 * i);
      for (int plane = 0; plane < a.planes; ++plane) {
        const int64_t at = (t * a.planes + plane) * blocks + block;
        quantize_bytes(v, a.q + at * kBlock, a.scale + at, a.sum + 2 * at);
      }
    }
  }
}

}  // namespace
}  // namespace kbench

void kbench::KBENCH_ISA::fill_own(MatmulTable& table) { table.quantize = quantize; }
#endif
