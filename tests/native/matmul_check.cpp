// The matrix kernels of one ISA against the scalar ones: every format, token count and a last tile that is not full,
// with canaries around the output. Built by tests/kernels/test_matmul_compiled.py, with the ISA's own flags or, for
// AVX-512 on a CPU without it, against an emulation of the intrinsics.
//
// KBENCH_FILL names the function that fills the table under test.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "blocks.h"
#include "matmul_table.h"
#include "matrix.h"

using namespace kbench;

namespace {

constexpr float kCanary = -12345.0f;
constexpr int64_t kMargin = 24;  // floats in front of, between and behind the rows of y
constexpr double kEps = 5.9604644775390625e-8;  // 2^-24

std::mt19937 rng(1);

float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(rng); }

// Positive or negative, magnitude 2^-6 to 2^-9: finite, normal scales.
uint16_t random_half() { return static_cast<uint16_t>((rng() & 0x8000u) | (6 + rng() % 4) << 10 | (rng() & 1023u)); }

void put_half(uint8_t* at) {
  const uint16_t half = random_half();
  std::memcpy(at, &half, sizeof half);
}

std::vector<uint8_t> random_rows(Format format, int64_t n, int64_t k) {
  const int64_t blocks = n * k / block_elements(format), size = block_bytes(format);
  std::vector<uint8_t> raw(static_cast<size_t>(blocks * size));
  for (uint8_t& byte : raw) byte = static_cast<uint8_t>(rng());
  for (int64_t i = 0; i < blocks; ++i) {
    uint8_t* block = raw.data() + i * size;
    const float value = uniform(-1, 1);
    switch (format) {
      case Format::F32: std::memcpy(block, &value, 4); break;
      case Format::BF16: std::memcpy(block, reinterpret_cast<const char*>(&value) + 2, 2); break;
      case Format::F16: put_half(block); break;
      case Format::Q4_0: case Format::Q5_0: case Format::Q8_0: case Format::IQ4_NL: case Format::IQ4_XS:
        put_half(block);
        break;
      case Format::Q4_1: case Format::Q5_1: case Format::Q4_K: case Format::Q5_K:
        put_half(block);
        put_half(block + 2);
        break;
      case Format::Q2_K:
        put_half(block + offsetof(BlockQ2_K, d));
        put_half(block + offsetof(BlockQ2_K, dmin));
        break;
      case Format::Q3_K: put_half(block + offsetof(BlockQ3_K, d)); break;
      case Format::Q6_K: put_half(block + offsetof(BlockQ6_K, d)); break;
      case Format::MXFP4: *block = static_cast<uint8_t>(116 + rng() % 8); break;
      default: break;
    }
  }
  return raw;
}

struct Aligned {
  explicit Aligned(int64_t bytes) : data(static_cast<uint8_t*>(std::aligned_alloc(64, static_cast<size_t>(bytes)))) {}
  ~Aligned() { std::free(data); }
  uint8_t* data;
};

struct Quantized {
  std::vector<int8_t> q;
  std::vector<int16_t> words;
  std::vector<float> scale, sum, word_scale, word_sum;
  Activation a;
  Quantized(const std::vector<float>& x, int64_t tokens, int64_t k, int64_t ldx, int planes, bool with_words,
            QuantizeFn quantize) {
    const size_t blocks = static_cast<size_t>(tokens * k / 32), all = blocks * static_cast<size_t>(planes);
    q.resize(all * 32);
    scale.resize(all);
    sum.resize(all * 2);
    words.resize(blocks * 32);
    word_scale.resize(blocks);
    word_sum.resize(blocks * 2);
    a.x = x.data();
    a.ldx = ldx;
    a.k = k;
    a.planes = planes;
    a.q = q.data();
    a.scale = scale.data();
    a.sum = sum.data();
    a.words = with_words ? words.data() : nullptr;
    a.word_scale = word_scale.data();
    a.word_sum = word_sum.data();
    if (quantize != nullptr) quantize(a, 0, tokens);
  }
  bool operator!=(const Quantized& o) const {
    return q != o.q || words != o.words || scale != o.scale || sum != o.sum || word_scale != o.word_scale ||
           word_sum != o.word_sum;
  }
};

// Bound on the difference of two float32 kernels: see rounding_bound() in test_matmul_native.py. Per block a quant
// times its scale and its offset are within twice |w| + the range of the weights that share them; at most four terms
// per block.
//
// KBENCH_BF16_BITS: how many bits of an activation meet BF16 weights with one plane and with two, where not all do.
#if !defined(KBENCH_BF16_BITS)
#define KBENCH_BF16_BITS 24, 24
#endif
constexpr int kBf16Bits[2] = {KBENCH_BF16_BITS};

std::vector<double> tolerance(const PackedMatrix& w, const std::vector<float>& x, int64_t tokens, int64_t ldx,
                              int planes) {
  std::vector<double> bound(static_cast<size_t>(tokens * w.n));
  std::vector<float> row(static_cast<size_t>(w.k));
  for (int64_t r = 0; r < w.n; ++r) {
    unpack_row(w, r, row.data());
    for (int64_t block = 0; block < w.k; block += 32) {
      const int64_t end = block + 32 < w.k ? block + 32 : w.k;
      double low = row[block], high = row[block];
      for (int64_t i = block; i < end; ++i) {
        low = std::fmin(low, row[i]);
        high = std::fmax(high, row[i]);
      }
      const double part = 2 * (std::fmax(std::fabs(low), std::fabs(high)) + high - low);
      for (int64_t t = 0; t < tokens; ++t) {
        double size = 0;
        for (int64_t i = block; i < end; ++i) size += std::fabs(x[t * ldx + i]);
        // Float formats round once per column instead of once per block.
        double roundings = block_elements(w.format) == 1 ? 2.0 * (w.k + 2) : 2 * 2 * 4 * (4 + w.k / 32.0);  // two planes
        if (w.format == Format::BF16) roundings += 1 << (24 - kBf16Bits[planes - 1]);
        bound[t * w.n + r] += kEps * roundings * part * size;
      }
    }
  }
  return bound;
}

int check(const char* kernel, MatmulFn true_matmul, MatmulFn matmul, Format format, const MatmulTable& truth,
          const MatmulTable& table, int64_t n, int64_t k, int64_t tokens, int planes, bool with_bias,
          int64_t panel_tokens = 0) {
  if (matmul == nullptr || matmul == true_matmul) return 0;
  const std::vector<uint8_t> raw = random_rows(format, n, k);
  PackedMatrix w;
  w.format = format;
  w.n = n;
  w.k = k;
  w.tile_bytes = packed_tile_bytes(format, k);
  const Aligned memory(w.tiles() * w.tile_bytes);
  w.data = memory.data;
  pack_tiles(format, raw.data(), n, k, w.data, 0, w.tiles());

  const int64_t ldx = k + 5, ldy = n + kMargin;
  std::vector<float> x(static_cast<size_t>(tokens * ldx)), bias(static_cast<size_t>(n));
  for (float& value : x) value = uniform(-2, 2);
  for (float& value : bias) value = uniform(-1, 1);
  for (int64_t i = 0; i < 32 && i < k; ++i) x[i] = 0;  // one block of zeros

  const bool words = table.panel_words[static_cast<int>(format)] != nullptr;
  Quantized expected(x, tokens, k, ldx, planes, words, block_elements(format) == 1 ? nullptr : truth.quantize);
  Quantized found(x, tokens, k, ldx, planes, words, block_elements(format) == 1 ? nullptr : table.quantize);
  if (expected != found) {
    std::printf("%s k=%ld tokens=%ld: activations quantised differently\n", format_name(format),
                static_cast<long>(k), static_cast<long>(tokens));
    return 1;
  }

  const size_t size = static_cast<size_t>(kMargin + tokens * ldy);
  std::vector<float> y(size, kCanary), y_truth(size, kCanary);
  const float* bias_data = with_bias ? bias.data() : nullptr;
  MatmulParameters p;
  p.planes = planes;
  p.panel_tokens = panel_tokens;
  p.k_block = 256;       // two panels where there are two super-blocks
  p.chunk_bytes = 4096;  // several chunks where there are many tokens, and ranges of columns
  true_matmul(w, expected.a, tokens, 0, w.tiles(), bias_data, y_truth.data() + kMargin, ldy, p);
  // In two calls, as two threads would.
  const int64_t middle = w.tiles() / 2;
  matmul(w, found.a, tokens, middle, w.tiles(), bias_data, y.data() + kMargin, ldy, p);
  matmul(w, found.a, tokens, 0, middle, bias_data, y.data() + kMargin, ldy, p);

  const std::vector<double> bound = tolerance(w, x, tokens, ldx, planes);
  int bad = 0;
  for (size_t i = 0; i < size; ++i) {
    const int64_t at = static_cast<int64_t>(i) - kMargin, t = at < 0 ? -1 : at / ldy, row = at < 0 ? -1 : at % ldy;
    const bool canary = at < 0 || row >= n;
    const double limit = canary ? 0 : bound[t * n + row] + (with_bias ? 4 * kEps * (std::fabs(y_truth[i]) + 1) : 0);
    if (!(std::fabs(y[i] - (canary ? kCanary : y_truth[i])) <= limit) && bad++ < 3) {
      std::printf("%s %s n=%ld k=%ld tokens=%ld: y[%ld, %ld] = %g, expected %g within %g%s\n",
                  format_name(format), kernel, static_cast<long>(n), static_cast<long>(k),
                  static_cast<long>(tokens), static_cast<long>(t), static_cast<long>(row), y[i],
                  canary ? kCanary : y_truth[i], limit, canary ? " (canary)" : "");
    }
  }
  return bad;
}

}  // namespace

int main() {
#if defined(__x86_64__) && defined(__linux__)
  syscall(SYS_arch_prctl, 0x1023, 18);  // as isa.cpp asks for tile registers; fails where there are none
#endif
  MatmulTable truth, table;
  fill_matmul_table_scalar(truth);
  table = truth;
  KBENCH_FILL(table);
  int bad = 0, n_checks = 0, n_missing = 0;
  for (int i = 0; i < kPackedFormatCount; ++i) {
    const Format format = static_cast<Format>(i);
    if (table.matmul[i] == truth.matmul[i] && table.panel_bytes[i] == truth.panel_bytes[i]) {
      std::printf("%s: no kernel of its own\n", format_name(format));
      ++n_missing;
      continue;
    }
    const auto all = [&](int64_t n, int64_t k, int64_t tokens, int planes, bool with_bias) {
      bad += check("lines", truth.matmul[i], table.matmul[i], format, truth, table, n, k, tokens, planes, with_bias);
      bad += check("bytes", truth.panel_bytes[i], table.panel_bytes[i], format, truth, table, n, k, tokens, planes,
                   with_bias);
      bad += check("words", truth.panel_words[i], table.panel_words[i], format, truth, table, n, k, tokens, planes,
                   with_bias);
      // Its kernel chooses between lines and panels itself: here panels, of as few tokens as there are.
      if (format == Format::BF16) {
        bad += check("panels", truth.matmul[i], table.matmul[i], format, truth, table, n, k, tokens, planes, with_bias,
                     1);
      }
      ++n_checks;
    };
    const int64_t k = block_elements(format) == 256 ? 512 : 96;
    for (const int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 17, 33}) {
      for (const int planes : {1, 2}) all(40, k, tokens, planes, tokens % 2 == 0);
    }
    for (const int64_t n : {1, 15, 16, 17}) all(n, block_elements(format) == 256 ? 256 : 32, 3, 2, n == 15);
    all(16, block_elements(format) == 256 ? 1280 : 1312, 2, 2, false);  // several panels, the last not full
    if (block_elements(format) > 1) continue;
    for (const int planes : {1, 2}) {
      for (const int64_t columns : {1, 2, 31, 33, 50, 601}) all(33, columns, 20, planes, columns == 33);
    }
  }
  std::printf("%d checks, %d wrong values, %d formats without a kernel\n", n_checks, bad, n_missing);
  return bad == 0 ? 0 : 1;
}
