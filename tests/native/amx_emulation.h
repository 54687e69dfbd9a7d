// The tile unit of AMX in plain C++, for testing kernels on CPUs without it: the instructions that they use, as Intel's
// manual defines them, with its faults as aborts.
#pragma once
#include <math.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace amx {

struct Tile {
  int rows = 0, row_bytes = 0;
  uint8_t data[16][64] = {};
};
static Tile tiles[8];
static bool configured = false;

static inline void require(bool condition, const char* what) {
  if (condition) return;
  std::printf("tile unit: %s\n", what);
  std::abort();
}

static inline void load_config(const void* memory) {
  uint8_t bytes[64];
  std::memcpy(bytes, memory, sizeof bytes);
  require(bytes[0] == 1 && bytes[1] == 0, "palette or start row");
  for (int i = 2; i < 16; ++i) require(bytes[i] == 0, "reserved bytes are set");
  for (int i = 0; i < 8; ++i) {
    tiles[i] = Tile{};
    tiles[i].rows = bytes[48 + i];
    tiles[i].row_bytes = bytes[16 + 2 * i] | bytes[17 + 2 * i] << 8;
    require(tiles[i].rows <= 16 && tiles[i].row_bytes <= 64, "a tile larger than 16 x 64");
    require((tiles[i].rows == 0) == (tiles[i].row_bytes == 0), "a tile without rows or columns");
  }
  for (int i = 32; i < 48; ++i) require(bytes[i] == 0, "more than eight tiles");
  for (int i = 56; i < 64; ++i) require(bytes[i] == 0, "more than eight tiles");
  configured = true;
}

static inline void release() {
  for (Tile& tile : tiles) tile = Tile{};
  configured = false;
}

static inline Tile& used(int i) {
  require(configured && i >= 0 && i < 8 && tiles[i].rows > 0, "a tile that is not configured");
  return tiles[i];
}

static inline void zero(int i) { std::memset(used(i).data, 0, sizeof tiles[i].data); }

static inline void load(int i, const void* base, int64_t stride) {
  zero(i);
  for (int row = 0; row < tiles[i].rows; ++row) {
    std::memcpy(tiles[i].data[row], static_cast<const uint8_t*>(base) + row * stride, tiles[i].row_bytes);
  }
}

static inline void store(int i, void* base, int64_t stride) {
  for (int row = 0; row < used(i).rows; ++row) {
    std::memcpy(static_cast<uint8_t*>(base) + row * stride, tiles[i].data[row], tiles[i].row_bytes);
  }
}

static inline void check_shapes(const Tile& c, const Tile& a, const Tile& b) {
  require(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows, "shapes that do not fit together");
}

// Signed bytes of A times unsigned bytes of B.
static inline void dpbsud(int to, int from_a, int from_b) {
  Tile &c = used(to), &a = used(from_a), &b = used(from_b);
  check_shapes(c, a, b);
  for (int m = 0; m < c.rows; ++m) {
    for (int n = 0; n < c.row_bytes / 4; ++n) {
      int32_t sum;
      std::memcpy(&sum, c.data[m] + 4 * n, 4);
      for (int k = 0; k < a.row_bytes; ++k) sum += static_cast<int8_t>(a.data[m][k]) * b.data[k / 4][4 * n + k % 4];
      std::memcpy(c.data[m] + 4 * n, &sum, 4);
    }
  }
}

// Numbers below the normal range are 0, going in and coming out.
static inline float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }

static inline float bfloat(const uint8_t* at) {
  uint32_t bits = static_cast<uint32_t>(at[0]) << 16 | static_cast<uint32_t>(at[1]) << 24;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return flushed(value);
}

static inline void dpbf16ps(int to, int from_a, int from_b) {
  Tile &c = used(to), &a = used(from_a), &b = used(from_b);
  check_shapes(c, a, b);
  for (int m = 0; m < c.rows; ++m) {
    for (int n = 0; n < c.row_bytes / 4; ++n) {
      float sums[2] = {0, 0}, sum;
      for (int k = 0; k < a.row_bytes / 4; ++k) {
        for (int j = 0; j < 2; ++j) {
          sums[j] = flushed(fmaf(bfloat(a.data[m] + 4 * k + 2 * j), bfloat(b.data[k] + 4 * n + 2 * j), sums[j]));
        }
      }
      std::memcpy(&sum, c.data[m] + 4 * n, 4);
      sum = flushed(sum + flushed(sums[0] + sums[1]));
      std::memcpy(c.data[m] + 4 * n, &sum, 4);
    }
  }
}

}  // namespace amx

#define _tile_loadconfig(config) ::amx::load_config(config)
#define _tile_release() ::amx::release()
#define _tile_zero(tile) ::amx::zero(tile)
#define _tile_loadd(tile, base, stride) ::amx::load(tile, base, stride)
#define _tile_stored(tile, base, stride) ::amx::store(tile, base, stride)
#define _tile_dpbsud(c, a, b) ::amx::dpbsud(c, a, b)
#define _tile_dpbf16ps(c, a, b) ::amx::dpbf16ps(c, a, b)
