// One step of the optimisation ladder that this CPU may not run, by itself: step 13 on every kind of row, against the
// same sums in plain integers. Prints the number of wrong values.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "ladder/ladder.h"

using namespace kbench::ladder;

static uint32_t state = 1;
static uint32_t random_bits() {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

static int check(int64_t n, int64_t blocks, int64_t tokens) {
  const int64_t k = blocks * kBlock;
  // Quants [n][k], behind them scales [n][blocks]; one line of canaries behind all.
  std::vector<uint8_t> w(static_cast<size_t>(n * k + n * blocks * 2));
  std::vector<int8_t> q(static_cast<size_t>(tokens * k));
  std::vector<float> scale(static_cast<size_t>(tokens * blocks)), y(static_cast<size_t>(tokens * n + 16), -7.0f);
  std::vector<float> scale_w(static_cast<size_t>(n * blocks));
  for (int64_t i = 0; i < n * k; ++i) w[static_cast<size_t>(i)] = static_cast<uint8_t>(random_bits());  // -128 too
  for (int64_t i = 0; i < n * blocks; ++i) {
    const int power = static_cast<int>(random_bits() % 8);  // float16 of 2^-power: exponent 15 - power, no fraction
    const uint16_t half = static_cast<uint16_t>((15 - power) << 10 | (i % 2 == 0 ? 0 : 0x8000));
    std::memcpy(w.data() + n * k + i * 2, &half, 2);
    scale_w[static_cast<size_t>(i)] = std::ldexp(i % 2 == 0 ? 1.0f : -1.0f, -power);
  }
  for (auto& value : q) value = static_cast<int8_t>(static_cast<int>(random_bits() % 255) - 127);
  for (auto& value : scale) value = 0.5f + static_cast<float>(random_bits() % 100) / 100.0f;

  Linear call;
  call.w = w.data();
  call.x = nullptr;
  call.y = y.data();
  call.n = n;
  call.k = k;
  call.tokens = tokens;
  call.scratch = nullptr;
  const Int8Rows x{q.data(), scale.data()};
  const int64_t middle = n / 2;  // in two parts, as two threads would
  rows_vnni(call, x, 0, middle);
  rows_vnni(call, x, middle, n);

  int bad = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t row = 0; row < n; ++row) {
      double truth = 0, size = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        const double both = static_cast<double>(scale_w[static_cast<size_t>(row * blocks + b)]) *
                            scale[static_cast<size_t>(t * blocks + b)];
        for (int64_t i = 0; i < kBlock; ++i) {
          const int product = static_cast<int8_t>(w[static_cast<size_t>(row * k + b * kBlock + i)]) *
                              q[static_cast<size_t>(t * k + b * kBlock + i)];
          truth += product * both;
          size += std::abs(product) * std::fabs(both);
        }
      }
      // Integer sums are exact. Floats round the scales' product, each block's share of a lane's sum, and the 16 lanes'
      // sum at the end: 2^-24 of what has come together each time.
      if (!(std::fabs(y[static_cast<size_t>(t * n + row)] - truth) <= (blocks + 17) * 0x1p-24 * size)) ++bad;
    }
  }
  for (int64_t i = tokens * n; i < tokens * n + 16; ++i) bad += y[static_cast<size_t>(i)] != -7.0f;
  if (bad != 0) std::printf("n %d, blocks %d, tokens %d: %d wrong\n", int(n), int(blocks), int(tokens), bad);
  return bad;
}

int main() {
  int bad = 0;
  for (const int64_t blocks : {1, 2, 3, 8, 9}) {
    for (const int64_t tokens : {1, 3}) bad += check(7, blocks, tokens);
  }
  std::printf("%d wrong values\n", bad);
  return bad == 0 ? 0 : 1;
}
