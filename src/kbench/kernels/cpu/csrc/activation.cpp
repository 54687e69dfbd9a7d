#include "activation.h"

#include "aligned_buffer.h"
#include "packed_layout.h"

namespace kbench {
namespace {

// Offsets of the parts; `rows` is tokens times planes for the planes, tokens for the words.
struct Parts {
  int64_t values, scale, sum, end;
  Parts(int64_t begin, int64_t rows, int64_t k, int64_t element_bytes) {
    values = begin;
    scale = values + round_up(rows * k * element_bytes, kLineBytes);
    sum = scale + round_up(rows * (k / kBlock) * 4, kLineBytes);
    end = sum + round_up(rows * (k / kBlock) * 8, 2 * kLineBytes);
  }
};

}  // namespace

int64_t activation_bytes(int64_t rows, int64_t k, int planes) {
  return Parts(Parts(0, rows * planes, k, 1).end, rows, k, 2).end;
}

Activation activation_in(uint8_t* data, int64_t rows, int64_t k, int planes) {
  const Parts bytes(0, rows * planes, k, 1), words(bytes.end, rows, k, 2);
  Activation a;
  a.k = k;
  a.planes = planes;
  a.q = reinterpret_cast<int8_t*>(data + bytes.values);
  a.scale = reinterpret_cast<float*>(data + bytes.scale);
  a.sum = reinterpret_cast<float*>(data + bytes.sum);
  a.words = reinterpret_cast<int16_t*>(data + words.values);
  a.word_scale = reinterpret_cast<float*>(data + words.scale);
  a.word_sum = reinterpret_cast<float*>(data + words.sum);
  return a;
}

Activation rows_from(const Activation& a, int64_t row) {
  Activation b = a;
  if (b.x != nullptr) b.x += row * a.ldx;
  if (b.q != nullptr) {
    b.q += row * a.planes * a.k;
    b.scale += row * a.planes * (a.k / kBlock);
    b.sum += row * a.planes * (a.k / kBlock) * 2;
  }
  if (b.words != nullptr) {
    b.words += row * a.k;
    b.word_scale += row * (a.k / kBlock);
    b.word_sum += row * (a.k / kBlock) * 2;
  }
  return b;
}

KernelChoice choose_kernel(const MatmulTable& table, Format format, int64_t tokens, int planes,
                           const MatmulParameters& p) {
  const int i = static_cast<int>(format);
  const int64_t switch_point = p.panel_tokens > 0 ? p.panel_tokens : table.panel_tokens[i][planes - 1];
  if (!quantised(format) || tokens < switch_point) return {table.matmul[i], false};
  // Words carry what two planes carry; for one plane bytes do, and cost half where the ISA has a kernel for them.
  if (planes == 1 && table.panel_bytes[i] != nullptr) return {table.panel_bytes[i], false};
  if (table.panel_words[i] != nullptr) return {table.panel_words[i], true};
  if (table.panel_bytes[i] != nullptr) return {table.panel_bytes[i], false};
  return {table.matmul[i], false};
}

}  // namespace kbench
