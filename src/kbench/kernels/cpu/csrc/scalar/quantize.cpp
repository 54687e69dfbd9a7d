#include "quantize.h"

#include <cmath>
#include <cstring>

#include "../half.h"
#include "../packed_layout.h"
#include "../quantized_range.h"

namespace kbench {

namespace {

// x ~ q * scale with scale = absmax / 127 over 32 values, q rounded to nearest, ties to even. x becomes the rest.
void quantize_block(float* x, int8_t* q, float* scale, float* sum) {
  uint32_t bits[kBlock], largest = 0;
  std::memcpy(bits, x, sizeof bits);
  for (const uint32_t b : bits) largest = (b & 0x7fffffffu) > largest ? b & 0x7fffffffu : largest;
  if (largest < kSmallestBits || largest >= kInfinityBits) {
    const float value = largest < kSmallestBits ? 0.0f : float_from_bits(kNanBits);
    std::memset(q, 0, kBlock);
    *scale = sum[0] = sum[1] = value;
    return;
  }
  const float absmax = float_from_bits(largest), inverse = 127.0f / absmax;
  *scale = absmax / 127.0f;
  int first = 0, all = 0;
  for (int i = 0; i < kBlock; ++i) {
    const int value = static_cast<int>(std::lrintf(x[i] * inverse));
    q[i] = static_cast<int8_t>(value);
    all += value;
    if (i < 16) first += value;
    x[i] = std::fma(-static_cast<float>(value), *scale, x[i]);
  }
  sum[0] = *scale * static_cast<float>(all);
  sum[1] = *scale * static_cast<float>(first);
}

}  // namespace

void quantize_scalar(const Activation& a, int64_t token_begin, int64_t token_end) {
  const int64_t blocks = (a.ldq == 0 ? a.k : a.ldq) / kBlock;
  for (int64_t t = token_begin; t < token_end; ++t) {
    for (int64_t block = 0; block < a.k / kBlock; ++block) {
      float rest[kBlock];
      std::memcpy(rest, a.x + t * a.ldx + block * kBlock, sizeof rest);
      for (int plane = 0; plane < a.planes; ++plane) {
        const int64_t at = (t * a.planes + plane) * blocks + block;
        quantize_block(rest, a.q + at * kBlock, a.scale + at, a.sum + 2 * at);
      }
    }
  }
}

}  // namespace kbench
