// Probe loops without vector intrinsics: what the plain kernels of this ISA are made of.
#include "probe_table.h"

namespace kbench {
namespace {

constexpr int kChains = 8;  // independent chains that hide a multiply and an add

int64_t peak_f32(int64_t rounds, float* sink) {
  float acc[kChains] = {0, 1, 2, 3, 4, 5, 6, 7};
  float factor = 0.999999f, term = 1e-6f;
  asm volatile("" : "+m"(factor), "+m"(term));  // hides the values: nothing can be folded
  const float f = factor, t = term;
  for (int64_t i = 0; i < rounds; ++i) {
    for (float& a : acc) a = a * f + t;
  }
  float sum = 0;
  for (const float a : acc) sum += a;
  *sink = sum;
  return rounds * kChains * 2;
}

int64_t peak_int8(int64_t rounds, float* sink) {
  int32_t acc[kChains] = {};
  int8_t a[kChains], b[kChains];
  for (int i = 0; i < kChains; ++i) {
    a[i] = static_cast<int8_t>(i + 1);
    b[i] = static_cast<int8_t>(3 - i);
  }
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+m"(a), "+m"(b));  // operands change as far as the compiler knows
    for (int i = 0; i < kChains; ++i)
      acc[i] = static_cast<int32_t>(static_cast<uint32_t>(acc[i]) + static_cast<uint32_t>(a[i] * b[i]));
  }
  float sum = 0;
  for (const int32_t x : acc) sum += static_cast<float>(x);
  *sink = sum;
  return rounds * kChains * 2;
}

uint64_t read(const uint8_t* data, int64_t n_bytes) {
  const uint64_t* x = reinterpret_cast<const uint64_t*>(data);
  uint64_t sum[4] = {};
  for (int64_t i = 0; i < n_bytes / 8; i += 4) {
    for (int j = 0; j < 4; ++j) sum[j] += x[i + j];
  }
  return sum[0] + sum[1] + sum[2] + sum[3];
}

}  // namespace

void fill_probe_table_scalar(ProbeTable& table) {
  table.f32 = peak_f32;
  table.int8 = peak_int8;
  table.read = read;
}

}  // namespace kbench
