// The small operations, readably: the truth that the vector versions are tested against.
#include <cmath>
#include <cstring>

#include "op_table.h"

namespace kbench {
namespace {

void rms_norm(const float* x, const float* weight, int64_t d, float eps, float* y) {
  // The sum in double: d squares of one sign lose d/2 units in float, and this costs nothing beside the loads.
  double sum = 0;
  for (int64_t i = 0; i < d; ++i) sum += static_cast<double>(x[i]) * x[i];
  const float scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(d) + eps));
  for (int64_t i = 0; i < d; ++i) y[i] = x[i] * scale * weight[i];
}

void silu_mul(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

void clamped_swiglu(const float* gate, const float* up, int64_t n, float alpha, float limit, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i] > limit ? limit : gate[i];
    const float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    y[i] = g / (1.0f + std::exp(-alpha * g)) * (u + 1.0f);
  }
}

void add(const float* a, const float* b, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void add_scaled(const float* x, float weight, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += weight * x[i];
}

void rotate(float a, float b, float cosine, float sine, float* ya, float* yb) {
  *ya = a * cosine - b * sine;
  *yb = a * sine + b * cosine;
}

void rope_norm(const float* x, const float* cosine, const float* sine, int64_t d, float* y) {
  for (int64_t i = 0; i < d / 2; ++i) rotate(x[2 * i], x[2 * i + 1], cosine[i], sine[i], &y[2 * i], &y[2 * i + 1]);
}

void rope_neox(const float* x, const float* cosine, const float* sine, int64_t d, float* y) {
  const int64_t half = d / 2;
  for (int64_t i = 0; i < half; ++i) rotate(x[i], x[i + half], cosine[i], sine[i], &y[i], &y[i + half]);
}

void scale_by(const float* x, float scale, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale;
}

}  // namespace

void fill_op_table_scalar(OpTable& table) {
  table.rms_norm = rms_norm;
  table.silu_mul = silu_mul;
  table.clamped_swiglu = clamped_swiglu;
  table.add = add;
  table.add_scaled = add_scaled;
  table.rope_norm = rope_norm;
  table.rope_neox = rope_neox;
  table.scale = scale_by;
}

}  // namespace kbench
