// Step 9, int8 activations: until here every weight is widened to a float before it is multiplied. Round the inputs to
// int8 as well (once per call: a few thousand numbers against millions of weights), and a block of 32 products is
// integer arithmetic on bytes, four times as many to a register as floats:
//
//   sum of w * x = scale_w * scale_x * (sum of q_w * q_x)      one float multiplication for 32 products
//
// This is the first step that changes results: an input is off by up to 1/254 of its block's largest.
#include "half_bits.h"
#include "int8_rows.h"
#include "share.h"
#include "steps.h"

namespace kbench::ladder {

void int8_activations(const Linear& call, ThreadPool& pool) {
  const RoundedRows rounded(call);
  const Int8Rows x = rounded.view();
  const int64_t blocks_per_row = call.k / kBlock;
  share_rows(pool, call.n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const BlockQ8_0* w = static_cast<const BlockQ8_0*>(call.w) + row * blocks_per_row;
      for (int64_t t = 0; t < call.tokens; ++t) {
        const int8_t* q = x.q + t * call.k;
        const float* scale = x.scale + t * blocks_per_row;
        float sum = 0.0f;
        for (int64_t b = 0; b < blocks_per_row; ++b) {
          int32_t products = 0;
          for (int64_t i = 0; i < kBlock; ++i) products += w[b].q[i] * q[b * kBlock + i];
          sum += float_from_half_bits(w[b].scale) * scale[b] * static_cast<float>(products);
        }
        call.y[t * call.n + row] = sum;
      }
    }
  });
}

}  // namespace kbench::ladder
