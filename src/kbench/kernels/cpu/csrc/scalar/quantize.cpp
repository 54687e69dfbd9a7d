#include "quantize.h"

#include <cmath>
#include <cstring>

#include "../half.h"
#include "../packed_layout.h"
#include "../quantized_range.h"

namespace kbench {

namespace {

// x ~ q * scale with scale = absmax / most over 32 values, q rounded to nearest, ties to even. x becomes the rest.
template <class Q>
void quantize_block(float* x, float most, Q* q, float* scale, float* sum) {
  uint32_t bits[kBlock], largest = 0;
  std::memcpy(bits, x, sizeof bits);
  for (const uint32_t b : bits) largest = (b & 0x7fffffffu) > largest ? b & 0x7fffffffu : largest;
  if (largest < kSmallestBits || largest >= kInfinityBits) {
    const float value = largest < kSmallestBits ? 0.0f : float_from_bits(kNanBits);
    std::memset(q, 0, kBlock * sizeof(Q));
    *scale = sum[0] = sum[1] = value;
    return;
  }
  const float absmax = float_from_bits(largest), inverse = most / absmax;
  *scale = absmax / most;
  int first = 0, all = 0;
  for (int i = 0; i < kBlock; ++i) {
    const int value = static_cast<int>(std::lrintf(x[i] * inverse));
    // Of each four words the order is 0 2 1 3, see matmul_table.h.
    const int place = sizeof(Q) == 1 ? i : (i & ~3) | (i & 1) << 1 | (i & 2) >> 1;
    q[place] = static_cast<Q>(value);
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
      if (a.words != nullptr) {
        const int64_t at = t * blocks + block;
        std::memcpy(rest, a.x + t * a.ldx + block * kBlock, sizeof rest);
        quantize_block(rest, kWordMost, a.words + at * kBlock, a.word_scale + at, a.word_sum + 2 * at);
      }
      if (a.q == nullptr) continue;
      std::memcpy(rest, a.x + t * a.ldx + block * kBlock, sizeof rest);
      for (int plane = 0; plane < a.planes; ++plane) {
        const int64_t at = (t * a.planes + plane) * blocks + block;
        quantize_block(rest, kByteMost, a.q + at * kBlock, a.scale + at, a.sum + 2 * at);
      }
    }
  }
}

}  // namespace kbench
