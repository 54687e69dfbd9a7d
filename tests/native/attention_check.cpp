// An ISA's attention against the scalar one: row counts on both sides of every tile, widths with tails, every
// cache type, causal ends and windows inside a unit, values of their own or the beginning of the keys, canaries around
// the outputs. Built with the ISA's own flags or, for AVX-512 on a CPU without it, against an emulation of the
// intrinsics.
//
// KBENCH_FILL and KBENCH_FILL_CACHE name the functions that fill the table under test.
#include <algorithm>
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

// About normal, of deviation 1, and quick: the sum of three bytes.
float normal() {
  const uint32_t bits = rng();
  return (static_cast<float>((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255)) - 382.5f) / 128.0f;
}

struct Result {
  std::vector<float> max, sum, out;
};

Result run(const OpTable& table, AttentionBlock b) {
  const auto n = static_cast<size_t>(b.rows);
  Result r{std::vector<float>(n + 2 * kMargin, kCanary), std::vector<float>(n + 2 * kMargin, kCanary),
           std::vector<float>(n * static_cast<size_t>(b.d_v) + 2 * kMargin, kCanary)};
  std::vector<float> scratch(static_cast<size_t>(attention_scratch_floats(b.d_k)) + kMargin, kCanary);
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

std::vector<uint8_t> stored(const OpTable& table, CacheType type, int64_t rows, int64_t d) {
  std::vector<float> x(static_cast<size_t>(d));
  const int64_t row_bytes = cache_row_bytes(type, d);
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * row_bytes));
  for (int64_t r = 0; r < rows; ++r) {
    for (float& value : x) value = normal();
    table.to_cache[static_cast<int>(type)](x.data(), d, bytes.data() + r * row_bytes);
  }
  return bytes;
}

int check(const OpTable& table, const OpTable& truth, int64_t rows, int64_t d_k, int64_t d_v, int64_t begin,
          int64_t end, CacheType type, bool latent, int64_t window) {
  std::vector<float> q(static_cast<size_t>(rows * d_k));
  for (float& x : q) x = normal() / std::sqrt(static_cast<float>(d_k));
  const std::vector<uint8_t> k = stored(truth, type, end, d_k), v = stored(truth, type, end, d_v);
  const auto n = static_cast<size_t>(rows);
  std::vector<int64_t> low(n), high(n);
  for (int64_t r = 0; r < rows; ++r) {  // the first see less
    high[static_cast<size_t>(r)] = std::max(begin, end - (rows - 1 - r) / 2);
    low[static_cast<size_t>(r)] = high[static_cast<size_t>(r)] - window;
  }
  high[0] = low[0] = begin;                         // sees nothing of this stretch
  if (window > 0 && rows > 3) low[n - 1] = end;  // nor does this row
  AttentionBlock b;
  b.q = q.data();
  b.rows = rows;
  b.d_k = d_k;
  b.d_v = d_v;
  b.k = k.data();
  b.v = latent ? k.data() : v.data();
  b.k_stride = cache_row_bytes(type, d_k);
  b.v_stride = latent ? b.k_stride : cache_row_bytes(type, d_v);
  b.type = type;
  b.begin = begin;
  b.end = end;
  b.low = window > 0 ? low.data() : nullptr;
  b.high = high.data();
  const Result got = run(table, b), want = run(truth, b);
  // Sums of up to 100 weights <= 1 times values of size 4; scores off by a few units in the last place.
  if (same(got.max, want.max, 1e-5) && same(got.sum, want.sum, 1e-3) && same(got.out, want.out, 2e-3)) return 0;
  std::printf("wrong: rows %d, d_k %d, d_v %d, positions %d to %d, type %d, latent %d, window %d\n",
              static_cast<int>(rows), static_cast<int>(d_k), static_cast<int>(d_v), static_cast<int>(begin),
              static_cast<int>(end), static_cast<int>(type), latent, static_cast<int>(window));
  return 1;
}

// Rows of every size are stored as the scalar functions store them, and nothing behind them is touched.
int check_stored(const OpTable& table, const OpTable& truth, CacheType type, int64_t d) {
  const auto n = static_cast<size_t>(cache_row_bytes(type, d));
  for (int round = 0; round < 20; ++round) {
    std::vector<float> x(static_cast<size_t>(d));
    for (float& value : x) value = normal() * std::pow(10.0f, static_cast<float>(round % 9 - 6));
    if (round == 0) std::fill(x.begin(), x.end(), 0.0f);
    std::vector<uint8_t> got(n + 8, 0xa5), want(n + 8, 0xa5);
    table.to_cache[static_cast<int>(type)](x.data(), d, got.data());
    truth.to_cache[static_cast<int>(type)](x.data(), d, want.data());
    if (got == want) continue;
    std::printf("stored wrong: type %d, d %d\n", static_cast<int>(type), static_cast<int>(d));
    return 1;
  }
  return 0;
}

}  // namespace

int main() {
  OpTable truth, table;
  fill_op_table_scalar(truth);
  fill_op_table_scalar_attention(truth);
  fill_op_table_scalar_cache(truth);
  table = truth;
  KBENCH_FILL_CACHE(table);
  KBENCH_FILL(table);
  int wrong = 0, cases = 0;
  const auto any = [](uint32_t most) { return 1 + static_cast<int64_t>(rng() % most); };
  const int64_t widths[][2] = {{64, 64}, {40, 24}, {7, 7}, {160, 160}, {288, 128}};
  for (int t = 0; t < kCacheTypes; ++t) {
    const auto type = static_cast<CacheType>(t);
    for (const auto& width : widths) {
      const int64_t d_k = width[0], d_v = width[1];
      if (!cache_takes(type, d_k) || !cache_takes(type, d_v)) continue;
      wrong += check_stored(table, truth, type, d_k);
      for (const int64_t rows : {1, 2, 3, 4, 5, 7, 11, 15, 16, 17, 24, 29, 33, 64}) {
        wrong += check(table, truth, rows, d_k, d_v, 0, any(110), type, false, 0);
        wrong += check(table, truth, rows, d_k, d_v, 32, 32 + any(70), type, true, 0);
        wrong += check(table, truth, rows, d_k, d_v, 7, 7 + any(110), type, rows % 2 == 0, any(80));
        cases += 3;
      }
    }
  }
  std::printf("%d of %d cases wrong\n", wrong, cases);
  return wrong == 0 ? 0 : 1;
}
