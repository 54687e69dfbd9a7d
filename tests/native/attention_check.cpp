// An ISA's attention against the scalar one: row counts on both sides of every tile, widths with tails, f16 and f32,
// causal ends inside a unit, canaries around the outputs. Built with the ISA's own flags or, for AVX-512 on a CPU
// without it, against an emulation of the intrinsics.
//
// KBENCH_FILL names the function that fills the table under test.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "op_table.h"

using namespace kbench;

namespace {

constexpr float kCanary = -12345.0f;
constexpr size_t kMargin = 16;

std::mt19937 rng(1);

float normal() {
  return std::normal_distribution<float>()(rng);
}

struct Result {
  std::vector<float> max, sum, out;
};

Result run(const OpTable& table, AttentionBlock b) {
  const auto n = static_cast<size_t>(b.rows);
  Result r{std::vector<float>(n + 2 * kMargin, kCanary), std::vector<float>(n + 2 * kMargin, kCanary),
           std::vector<float>(n * static_cast<size_t>(b.d_v) + 2 * kMargin, kCanary)};
  std::vector<float> scratch(static_cast<size_t>(attention_scratch_floats(b.d_k, b.d_v)) + kMargin, kCanary);
  b.max = r.max.data() + kMargin;
  b.sum = r.sum.data() + kMargin;
  b.out = r.out.data() + kMargin;
  b.scratch = scratch.data();
  table.attention(b);
  for (size_t i = scratch.size() - kMargin; i < scratch.size(); ++i) {
    if (scratch[i] != kCanary) r.max[0] = 0;  // reported as a broken canary
  }
  return r;
}

bool same(const std::vector<float>& got, const std::vector<float>& want, double tolerance) {
  for (size_t i = 0; i < got.size(); ++i) {
    const bool margin = i < kMargin || i >= got.size() - kMargin;
    if (margin ? got[i] != kCanary : !(got[i] == want[i] || std::fabs(got[i] - want[i]) <= tolerance)) return false;
  }
  return true;
}

int check(const OpTable& table, const OpTable& truth, int64_t rows, int64_t d_k, int64_t d_v, int64_t begin,
          int64_t end, bool half) {
  std::vector<float> q(static_cast<size_t>(rows * d_k));
  for (float& x : q) x = normal() / std::sqrt(static_cast<float>(d_k));
  const auto elements = static_cast<size_t>(end * d_k);
  std::vector<float> k(elements), v(elements);
  for (float& x : k) x = normal();
  for (float& x : v) x = normal();
  std::vector<uint16_t> k_half(elements), v_half(elements);
  truth.to_half(k.data(), static_cast<int64_t>(elements), k_half.data());
  truth.to_half(v.data(), static_cast<int64_t>(elements), v_half.data());
  std::vector<int64_t> visible(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) visible[static_cast<size_t>(r)] = end - (rows - 1 - r) / 2;  // the first see less
  visible[0] = begin;  // sees nothing of this stretch
  AttentionBlock b;
  b.q = q.data();
  b.rows = rows;
  b.d_k = d_k;
  b.d_v = d_v;
  b.k = half ? static_cast<const void*>(k_half.data()) : k.data();
  b.v = half ? static_cast<const void*>(v_half.data()) : v.data();
  b.k_stride = b.v_stride = d_k;
  b.half = half;
  b.begin = begin;
  b.end = end;
  b.visible = visible.data();
  const Result got = run(table, b), want = run(truth, b);
  // Sums of up to 100 weights <= 1 times values of size 4; scores off by a few units in the last place.
  if (same(got.max, want.max, 1e-5) && same(got.sum, want.sum, 1e-3) && same(got.out, want.out, 2e-3)) return 0;
  std::printf("wrong: rows %d, d_k %d, d_v %d, positions %d to %d, %s\n", static_cast<int>(rows), static_cast<int>(d_k),
              static_cast<int>(d_v), static_cast<int>(begin), static_cast<int>(end), half ? "f16" : "f32");
  return 1;
}

}  // namespace

int main() {
  OpTable truth, table;
  fill_op_table_scalar(truth);
  fill_op_table_scalar_attention(truth);
  table = truth;
  KBENCH_FILL(table);
  int wrong = 0, cases = 0;
  const int64_t widths[][2] = {{64, 64}, {40, 24}, {7, 7}, {80, 64}, {96, 72}};
  for (const int64_t rows : {1, 2, 3, 5, 7, 11, 15, 16, 17, 23, 24, 31, 48}) {
    for (const auto& width : widths) {
      for (const bool half : {false, true}) {
        wrong += check(table, truth, rows, width[0], width[1], 0, 1 + static_cast<int64_t>(rng() % 100), half);
        wrong += check(table, truth, rows, width[0], width[1], 32, 33 + static_cast<int64_t>(rng() % 64), half);
        cases += 2;
      }
    }
  }
  std::printf("%d of %d cases wrong\n", wrong, cases);
  return wrong == 0 ? 0 : 1;
}
