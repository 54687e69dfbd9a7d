// The readable truth of the matrix kernels, for any CPU.
#include "../matmul_table.h"
#include "../packed_row.h"
#include "quantize.h"

namespace kbench {
namespace {

inline void store(const float* values, int64_t rows, const float* bias, float* y) {
  for (int64_t row = 0; row < rows; ++row) y[row] = values[row] + (bias == nullptr ? 0.0f : bias[row]);
}

constexpr int64_t kTokens = 8;  // tokens that share one unpacking of a block

// w = scale * q + offset and x ~ scale_x * q_x, summed over the planes of x, so that over 16 weights
//   sum w x  ~  scale * scale_x * sum(q * q_x)  +  offset * (scale_x * sum(q_x)).
// Words are one plane of their own.
template <Format format, bool words>
void multiply_blocks(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin, int64_t tile_end,
                     const float* bias, float* y, int64_t ldy, const MatmulParameters&) {
  const int64_t blocks = w.k / kBlock;
  const int planes = words ? 1 : a.planes;
  const float* scale_x = words ? a.word_scale : a.scale;
  const float* sum_x = words ? a.word_sum : a.sum;
  for (int64_t i = tile_begin; i < tile_end; ++i) {
    const uint8_t* tile = w.data + i * w.tile_bytes;
    const int64_t row_begin = i * kTileRows;
    const int64_t rows = w.n - row_begin < kTileRows ? w.n - row_begin : kTileRows;
    for (int64_t token = 0; token < tokens; token += kTokens) {
      const int64_t token_end = token + kTokens < tokens ? token + kTokens : tokens;
      float out[kTokens][kTileRows] = {};
      for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t row = 0; row < rows; ++row) {
          const RowBlock b = read_row_block<format>(tile, w.k, block, row);
          for (int64_t t = token; t < token_end; ++t) {
            for (int plane = 0; plane < planes; ++plane) {
              const int64_t at = (t * planes + plane) * blocks + block;
              int32_t dot[2] = {0, 0};
              for (int j = 0; j < 32; ++j) {
                // Of each four words the order is 0 2 1 3.
                const int32_t x = words ? a.words[at * kBlock + ((j & ~3) | (j & 1) << 1 | (j & 2) >> 1)]
                                        : a.q[at * kBlock + j];
                dot[j / 16] += b.q[j] * x;
              }
              const float product = b.scale[0] * static_cast<float>(dot[0]) + b.scale[1] * static_cast<float>(dot[1]);
              const float* sum = sum_x + 2 * at;  // of all 32, of the first 16
              out[t - token][row] +=
                  scale_x[at] * product + b.offset[1] * sum[0] + (b.offset[0] - b.offset[1]) * sum[1];
            }
          }
        }
      }
      for (int64_t t = token; t < token_end; ++t) {
        store(out[t - token], rows, bias == nullptr ? nullptr : bias + row_begin, y + t * ldy + row_begin);
      }
    }
  }
}

template <Format format>
void multiply_floats(const PackedMatrix& w, const Activation& a, int64_t tokens, int64_t tile_begin, int64_t tile_end,
                     const float* bias, float* y, int64_t ldy, const MatmulParameters&) {
  for (int64_t i = tile_begin; i < tile_end; ++i) {
    const uint8_t* tile = w.data + i * w.tile_bytes;
    const int64_t row_begin = i * kTileRows;
    const int64_t rows = w.n - row_begin < kTileRows ? w.n - row_begin : kTileRows;
    for (int64_t t = 0; t < tokens; ++t) {
      float out[kTileRows] = {};
      for (int64_t column = 0; column < w.k; ++column) {
        const float x = a.x[t * a.ldx + column];
        for (int64_t row = 0; row < kTileRows; ++row) out[row] += read_weight<format>(tile, column, row) * x;
      }
      store(out, rows, bias == nullptr ? nullptr : bias + row_begin, y + t * ldy + row_begin);
    }
  }
}

template <Format format>
void fill_blocks(MatmulTable& table) {
  table.matmul[static_cast<int>(format)] = multiply_blocks<format, false>;
  table.panel_bytes[static_cast<int>(format)] = multiply_blocks<format, false>;
  table.panel_words[static_cast<int>(format)] = multiply_blocks<format, true>;
  // Both cost the same: words are one row instead of two.
  table.panel_tokens[static_cast<int>(format)][0] = table.panel_tokens[static_cast<int>(format)][1] = 8;
}

}  // namespace

void fill_matmul_table_scalar(MatmulTable& table) {
  table.quantize = quantize_scalar;
  table.matmul[static_cast<int>(Format::F32)] = multiply_floats<Format::F32>;
  table.matmul[static_cast<int>(Format::F16)] = multiply_floats<Format::F16>;
  table.matmul[static_cast<int>(Format::BF16)] = multiply_floats<Format::BF16>;
  fill_blocks<Format::Q4_0>(table);
  fill_blocks<Format::Q4_1>(table);
  fill_blocks<Format::Q5_0>(table);
  fill_blocks<Format::Q5_1>(table);
  fill_blocks<Format::Q8_0>(table);
  fill_blocks<Format::Q2_K>(table);
  fill_blocks<Format::Q3_K>(table);
  fill_blocks<Format::Q4_K>(table);
  fill_blocks<Format::Q5_K>(table);
  fill_blocks<Format::Q6_K>(table);
  fill_blocks<Format::IQ4_NL>(table);
  fill_blocks<Format::IQ4_XS>(table);
  fill_blocks<Format::MXFP4>(table);
}

}  // namespace kbench
