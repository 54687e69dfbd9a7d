#include "quantize.h"

#include <cmath>
#include <cstring>

#include "../half.h"
#include "../packed_layout.h"
#include "../quantized_range.h"

namespace kbench {

// x ~ q * scale with scale = absmax / 127 over 32 values, q rounded to nearest, ties to even.
void quantize_scalar(const Activation& a, int64_t token_begin, int64_t token_end) {
  const int64_t blocks = a.k / kBlock;
  for (int64_t t = token_begin; t < token_end; ++t) {
    for (int64_t block = 0; block < blocks; ++block) {
      const float* x = a.x + t * a.ldx + block * kBlock;
      int8_t* q = a.q + t * a.k + block * kBlock;
      float* scale = a.scale + t * blocks + block;
      float* sum = a.sum + (t * blocks + block) * 2;
      uint32_t bits[32], largest = 0;
      std::memcpy(bits, x, sizeof bits);
      for (const uint32_t b : bits) largest = (b & 0x7fffffffu) > largest ? b & 0x7fffffffu : largest;
      if (largest < kSmallestBits || largest >= kInfinityBits) {
        const float value = largest < kSmallestBits ? 0.0f : float_from_bits(kNanBits);
        std::memset(q, 0, kBlock);
        *scale = sum[0] = sum[1] = value;
        continue;
      }
      const float absmax = float_from_bits(largest), inverse = 127.0f / absmax;
      int first = 0, all = 0;
      for (int i = 0; i < kBlock; ++i) {
        const int value = static_cast<int>(std::lrintf(x[i] * inverse));
        q[i] = static_cast<int8_t>(value);
        all += value;
        if (i < 16) first += value;
      }
      *scale = absmax / 127.0f;
      sum[0] = *scale * static_cast<float>(all);
      sum[1] = *scale * static_cast<float>(first);
    }
  }
}

}  // namespace kbench
