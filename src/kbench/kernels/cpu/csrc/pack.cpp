// GGUF rows to packed tiles. Plain loops over whole dwords: packing runs at the speed of reading the file.
// Blocks are copied out of the file with memcpy: GGUF aligns tensors, not the rows of every block type.
#include <cstring>
#include <stdexcept>

#include "blocks.h"
#include "matrix.h"
#include "packed_layout.h"

namespace kbench {
namespace {

void put(uint8_t* lines, int64_t line, int64_t row, uint32_t dword) {
  std::memcpy(lines + line * kLineBytes + 4 * row, &dword, sizeof dword);
}

void put_half(uint8_t* halves, int64_t row, half_bits value) { std::memcpy(halves + 2 * row, &value, sizeof value); }

uint32_t dword_at(const void* bytes, int64_t index) {
  uint32_t value;
  std::memcpy(&value, static_cast<const uint8_t*>(bytes) + 4 * index, sizeof value);
  return value;
}

// One row's 16 bytes of nibbles, already paired as (i, 16 + i).
void put_nibbles(uint8_t* lines, int64_t row, const void* nibbles) {
  for (int64_t l = 0; l < 4; ++l) put(lines, l, row, dword_at(nibbles, l));
}

struct PackQ4_0 {
  using Block = BlockQ4_0;
  static void pack(const Block& b, uint8_t* tile, int64_t blocks, int64_t block, int64_t row) {
    put_nibbles(tile + block * kNibbleBlockBytes, row, b.q);
    put_half(tile + blocks * kNibbleBlockBytes + block * kHalvesBytes, row, b.d);
  }
};

struct PackQ4_1 {
  using Block = BlockQ4_1;
  static void pack(const Block& b, uint8_t* tile, int64_t, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ4_1BlockBytes;
    put_half(p, row, b.d);
    put_half(p + kHalvesBytes, row, b.m);
    put_nibbles(p + 2 * kHalvesBytes, row, b.q);
  }
};

struct PackQ8_0 {
  using Block = BlockQ8_0;
  static void pack(const Block& b, uint8_t* tile, int64_t blocks, int64_t block, int64_t row) {
    for (int64_t l = 0; l < 8; ++l) put(tile + block * kByteBlockBytes, l, row, dword_at(b.q, l));
    put_half(tile + blocks * kByteBlockBytes + block * kHalvesBytes, row, b.d);
  }
};

// Six-bit scale and minimum of block `i` of eight: the first four stand in the low bits of bytes 0-3 and 4-7; the
// other four have their low nibbles in bytes 8-11 and their two high bits on top of the first four.
void q4_k_scale_min(const uint8_t* s, int i, uint8_t* scale, uint8_t* minimum) {
  if (i < 4) {
    *scale = s[i] & 63;
    *minimum = s[i + 4] & 63;
  } else {
    *scale = static_cast<uint8_t>((s[i + 4] & 15) | (s[i - 4] >> 6) << 4);
    *minimum = static_cast<uint8_t>((s[i + 4] >> 4) | (s[i] >> 6) << 4);
  }
}

struct PackQ4_K {
  using Block = BlockQ4_K;
  static void pack(const Block& b, uint8_t* tile, int64_t, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ4_KBytes;
    put_half(p, row, b.d);
    put_half(p + kHalvesBytes, row, b.dmin);
    for (int i = 0; i < 8; ++i) {
      uint8_t* scales = p + kQ4_KScales + i * kQ4_KScalesBytes;
      q4_k_scale_min(b.scales, i, scales + row, scales + kTileRows + row);
    }
    constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0fu;
    for (int pair = 0; pair < 4; ++pair) {  // GGUF pairs weight i with 32 + i, the packed form pairs it with 16 + i
      uint64_t in[4], first[2], second[2];
      std::memcpy(in, b.q + 32 * pair, sizeof in);
      for (int i = 0; i < 2; ++i) {
        first[i] = (in[i] & kLow) | (in[i + 2] & kLow) << 4;
        second[i] = (in[i] >> 4 & kLow) | (in[i + 2] & ~kLow);
      }
      put_nibbles(p + kQ4_KQuants + 2 * pair * kNibbleBlockBytes, row, first);
      put_nibbles(p + kQ4_KQuants + (2 * pair + 1) * kNibbleBlockBytes, row, second);
    }
  }
};

struct PackQ6_K {
  using Block = BlockQ6_K;
  static void pack(const Block& b, uint8_t* tile, int64_t blocks, int64_t block, int64_t row) {
    uint8_t* p = tile + block * kQ6_KBytes;
    put_half(tile + blocks * kQ6_KBytes + block * kHalvesBytes, row, b.d);
    for (int group = 0; group < 16; ++group) {
      p[group * kQ6_KScalesBytes + row] = static_cast<uint8_t>(b.scales[group]);
      // Weights 16 * group ..: 128 of them share 64 bytes of `low` and 32 of `high`; 32 share a place within a byte.
      const int part = group / 8, quarter = group % 8 / 2, half = group % 2;
      const uint8_t* low = b.low + 64 * part + 32 * (quarter % 2) + 16 * half;
      const uint8_t* high = b.high + 32 * part + 16 * half;
      uint32_t nibbles[4], bits[4];
      for (int i = 0; i < 4; ++i) {
        nibbles[i] = dword_at(low, i) >> (quarter < 2 ? 0 : 4) & 0x0f0f0f0fu;
        bits[i] = dword_at(high, i) >> (2 * quarter) & 0x03030303u;
      }
      uint8_t* lines = p + kQ6_KQuants + group * kQ6_KGroupBytes;
      put(lines, 0, row, nibbles[0] | nibbles[2] << 4);
      put(lines, 1, row, nibbles[1] | nibbles[3] << 4);
      put(lines, 2, row, bits[0] | bits[1] << 2 | bits[2] << 4 | bits[3] << 6);
    }
  }
};

template <class Pack>
void pack_blocks(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                 int64_t tile_end) {
  using Block = typename Pack::Block;
  const int64_t blocks = k / block_elements(format), row_bytes = blocks * block_bytes(format);
  const int64_t tile_bytes = packed_tile_bytes(format, k);
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    uint8_t* tile = out + t * tile_bytes;
    const int64_t rows = n - t * kTileRows < kTileRows ? n - t * kTileRows : kTileRows;
    // Rows past the end are zero weights, and so is the padding behind a plane of scales.
    if (rows < kTileRows) std::memset(tile, 0, static_cast<size_t>(tile_bytes));
    else std::memset(tile + tile_bytes - kLineBytes, 0, kLineBytes);
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t row = 0; row < rows; ++row) {
        Block b;
        std::memcpy(&b, raw + (t * kTileRows + row) * row_bytes + block * static_cast<int64_t>(sizeof b), sizeof b);
        Pack::pack(b, tile, blocks, block, row);
      }
    }
  }
}

template <class Word>
void pack_words(const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_bytes, int64_t tile_begin,
                int64_t tile_end) {
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    uint8_t* tile = out + t * tile_bytes;
    const int64_t rows = n - t * kTileRows < kTileRows ? n - t * kTileRows : kTileRows;
    if (rows < kTileRows) std::memset(tile, 0, static_cast<size_t>(tile_bytes));
    else std::memset(tile + tile_bytes - kLineBytes, 0, kLineBytes);
    constexpr int64_t kWords = kLineBytes / static_cast<int64_t>(sizeof(Word));  // a line of each row at a time
    for (int64_t first = 0; first < k; first += kWords) {
      const int64_t last = first + kWords < k ? first + kWords : k;
      for (int64_t row = 0; row < rows; ++row) {
        const uint8_t* in = raw + (t * kTileRows + row) * k * static_cast<int64_t>(sizeof(Word));
        for (int64_t column = first; column < last; ++column) {
          std::memcpy(tile + (column * kTileRows + row) * static_cast<int64_t>(sizeof(Word)),
                      in + column * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
        }
      }
    }
  }
}

}  // namespace

void pack_tiles(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                int64_t tile_end) {
  const int64_t tile_bytes = packed_tile_bytes(format, k);
  switch (format) {
    case Format::F32: return pack_words<uint32_t>(raw, n, k, out, tile_bytes, tile_begin, tile_end);
    case Format::F16: case Format::BF16:
      return pack_words<uint16_t>(raw, n, k, out, tile_bytes, tile_begin, tile_end);
    case Format::Q4_0: return pack_blocks<PackQ4_0>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::Q4_1: return pack_blocks<PackQ4_1>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::Q8_0: return pack_blocks<PackQ8_0>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::Q4_K: return pack_blocks<PackQ4_K>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::Q6_K: return pack_blocks<PackQ6_K>(format, raw, n, k, out, tile_begin, tile_end);
    case Format::kCount: break;
  }
  throw std::invalid_argument("not a weight format");
}

}  // namespace kbench
