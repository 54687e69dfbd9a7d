#include "matrix.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "blocks.h"
#include "packed_layout.h"
#include "packed_row.h"
#include "rare_blocks.h"
#include "raw_tiles.h"

namespace kbench {

namespace {

constexpr const char* kNames[kFormatCount] = {
    "F32",  "F16",    "BF16",   "Q4_0",  "Q4_1",  "Q5_0",  "Q5_1",    "Q8_0",   "Q2_K",
    "Q3_K", "Q4_K",   "Q5_K",   "Q6_K",  "IQ4_NL", "IQ4_XS", "MXFP4",   "F64",    "TQ1_0",
    "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "NVFP4"};

[[noreturn]] void refuse() { throw std::invalid_argument("not a weight format"); }

template <Format format>
void unpack_floats(const PackedMatrix& w, int64_t row, float* out) {
  const uint8_t* tile = w.data + row / kTileRows * w.tile_bytes;
  for (int64_t column = 0; column < w.k; ++column) out[column] = read_weight<format>(tile, column, row % kTileRows);
}

template <Format format>
void unpack_blocks(const PackedMatrix& w, int64_t row, float* out) {
  const uint8_t* tile = w.data + row / kTileRows * w.tile_bytes;
  for (int64_t block = 0; block < w.k / kBlock; ++block) {
    const RowBlock b = read_row_block<format>(tile, w.k, block, row % kTileRows);
    // Two roundings, as GGUF's dequantisation does: this file is built without contraction to fused operations.
    float* values = out + block * kBlock;
    for (int64_t i = 0; i < kBlock; ++i) values[i] = b.scale[i / 16] * static_cast<float>(b.q[i]) + b.offset[i / 16];
  }
}

}  // namespace

const char* format_name(Format format) {
  const int i = static_cast<int>(format);
  return i >= 0 && i < kFormatCount ? kNames[i] : "?";
}

bool find_format(const char* name, Format* format) {
  for (int i = 0; i < kFormatCount; ++i) {
    if (std::strcmp(name, kNames[i]) != 0) continue;
    *format = static_cast<Format>(i);
    return true;
  }
  return false;
}

Format format_from_name(const char* name) {
  Format format;
  if (find_format(name, &format)) return format;
  std::string accepted;
  for (const char* known : kNames) accepted += (accepted.empty() ? "" : ", ") + std::string(known);
  throw std::invalid_argument("no kernel reads format '" + std::string(name) + "', accepted: " + accepted);
}

bool has_packed_layout(Format format) { return static_cast<int>(format) < kPackedFormatCount; }

bool quantised(Format format) { return has_packed_layout(format) && block_elements(format) > 1; }

int64_t block_elements(Format format) {
  switch (format) {
    case Format::F32: case Format::F16: case Format::BF16: case Format::F64: return 1;
    case Format::Q4_0: case Format::Q4_1: case Format::Q5_0: case Format::Q5_1: case Format::Q8_0:
    case Format::IQ4_NL: case Format::MXFP4: return kBlock;
    case Format::Q2_K: case Format::Q3_K: case Format::Q4_K: case Format::Q5_K: case Format::Q6_K:
    case Format::IQ4_XS: case Format::TQ1_0: case Format::TQ2_0: case Format::IQ1_S: case Format::IQ1_M:
    case Format::IQ2_XXS: case Format::IQ2_XS: case Format::IQ2_S: case Format::IQ3_XXS: case Format::IQ3_S:
      return kSuperBlock;
    case Format::NVFP4: return 2 * kBlock;
    case Format::kCount: break;
  }
  refuse();
}

int64_t block_bytes(Format format) {
  switch (format) {
    case Format::F32: return 4;
    case Format::F16: case Format::BF16: return 2;
    case Format::Q4_0: return sizeof(BlockQ4_0);
    case Format::Q4_1: return sizeof(BlockQ4_1);
    case Format::Q5_0: return sizeof(BlockQ5_0);
    case Format::Q5_1: return sizeof(BlockQ5_1);
    case Format::Q8_0: return sizeof(BlockQ8_0);
    case Format::Q2_K: return sizeof(BlockQ2_K);
    case Format::Q3_K: return sizeof(BlockQ3_K);
    case Format::Q4_K: return sizeof(BlockQ4_K);
    case Format::Q5_K: return sizeof(BlockQ5_K);
    case Format::Q6_K: return sizeof(BlockQ6_K);
    case Format::IQ4_NL: return sizeof(BlockIQ4_NL);
    case Format::IQ4_XS: return sizeof(BlockIQ4_XS);
    case Format::MXFP4: return sizeof(BlockMXFP4);
    case Format::F64: return sizeof(double);
    case Format::TQ1_0: return sizeof(BlockTQ1_0);
    case Format::TQ2_0: return sizeof(BlockTQ2_0);
    case Format::IQ1_S: return sizeof(BlockIQ1_S);
    case Format::IQ1_M: return sizeof(BlockIQ1_M);
    case Format::IQ2_XXS: return sizeof(BlockIQ2_XXS);
    case Format::IQ2_XS: return sizeof(BlockIQ2_XS);
    case Format::IQ2_S: return sizeof(BlockIQ2_S);
    case Format::IQ3_XXS: return sizeof(BlockIQ3_XXS);
    case Format::IQ3_S: return sizeof(BlockIQ3_S);
    case Format::NVFP4: return sizeof(BlockNVFP4);
    case Format::kCount: break;
  }
  refuse();
}

int64_t raw_row_bytes(Format format, int64_t k) { return k / block_elements(format) * block_bytes(format); }

int64_t packed_tile_bytes(Format format, int64_t k) {
  const int64_t blocks = k / kBlock, super_blocks = k / kSuperBlock;
  switch (format) {
    case Format::F32: return k * kLineBytes;
    case Format::F16: case Format::BF16: return whole_lines(k * kHalvesBytes);
    case Format::Q4_0: case Format::IQ4_NL: return blocks * kNibbleBlockBytes + whole_lines(blocks * kHalvesBytes);
    case Format::Q4_1: return blocks * kQ4_1BlockBytes;
    case Format::Q5_0: return blocks * kFiveBitBlockBytes + whole_lines(blocks * kHalvesBytes);
    case Format::Q5_1: return blocks * kQ5_1BlockBytes;
    case Format::Q8_0: return blocks * kByteBlockBytes + whole_lines(blocks * kHalvesBytes);
    case Format::Q2_K: return super_blocks * kQ2_KBytes;
    case Format::Q3_K: return super_blocks * kQ3_KBytes + whole_lines(super_blocks * kHalvesBytes);
    case Format::Q4_K: return super_blocks * kQ4_KBytes;
    case Format::Q5_K: return super_blocks * kQ5_KBytes;
    case Format::Q6_K: return super_blocks * kQ6_KBytes + whole_lines(super_blocks * kHalvesBytes);
    case Format::IQ4_XS: return super_blocks * kIQ4_XSBytes + whole_lines(super_blocks * kHalvesBytes);
    case Format::MXFP4: return blocks * kNibbleBlockBytes + whole_lines(blocks * kExponentsBytes);
    default: break;
  }
  refuse();
}

void unpack_row(const PackedMatrix& w, int64_t row, float* out) {
  if (w.raw != nullptr) return unpack_raw_row(w, row, out);
  switch (w.format) {
    case Format::F32: return unpack_floats<Format::F32>(w, row, out);
    case Format::F16: return unpack_floats<Format::F16>(w, row, out);
    case Format::BF16: return unpack_floats<Format::BF16>(w, row, out);
    case Format::Q4_0: return unpack_blocks<Format::Q4_0>(w, row, out);
    case Format::Q4_1: return unpack_blocks<Format::Q4_1>(w, row, out);
    case Format::Q5_0: return unpack_blocks<Format::Q5_0>(w, row, out);
    case Format::Q5_1: return unpack_blocks<Format::Q5_1>(w, row, out);
    case Format::Q8_0: return unpack_blocks<Format::Q8_0>(w, row, out);
    case Format::Q2_K: return unpack_blocks<Format::Q2_K>(w, row, out);
    case Format::Q3_K: return unpack_blocks<Format::Q3_K>(w, row, out);
    case Format::Q4_K: return unpack_blocks<Format::Q4_K>(w, row, out);
    case Format::Q5_K: return unpack_blocks<Format::Q5_K>(w, row, out);
    case Format::Q6_K: return unpack_blocks<Format::Q6_K>(w, row, out);
    case Format::IQ4_NL: return unpack_blocks<Format::IQ4_NL>(w, row, out);
    case Format::IQ4_XS: return unpack_blocks<Format::IQ4_XS>(w, row, out);
    case Format::MXFP4: return unpack_blocks<Format::MXFP4>(w, row, out);
    default: break;
  }
  refuse();
}

}  // namespace kbench
