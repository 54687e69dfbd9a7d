// The weight blocks of a GGUF file, byte for byte (little endian, no padding).
// Source: the quantisation classes of the `gguf` Python package, which is also the oracle of the tests.
#pragma once
#include <cstdint>

namespace kbench {

using half_bits = uint16_t;  // IEEE binary16, as stored

struct BlockQ4_0 {  // w = d * (q - 8)
  half_bits d;
  uint8_t q[16];  // low nibbles: weights 0..15, high nibbles: 16..31
};

struct BlockQ4_1 {  // w = d * q + m
  half_bits d;
  half_bits m;
  uint8_t q[16];  // as in Q4_0
};

struct BlockQ8_0 {  // w = d * q
  half_bits d;
  int8_t q[32];
};

struct BlockQ4_K {  // w = (d * sc) * q - (dmin * m), sc and m six bits for each 32 weights
  half_bits d;
  half_bits dmin;
  uint8_t scales[12];  // sc and m of eight blocks, see q4_k_scale_min() in pack.cpp
  uint8_t q[128];      // per 64 weights 32 bytes: low nibbles 0..31, high nibbles 32..63
};

struct BlockQ6_K {  // w = (d * sc) * (q - 32), sc for each 16 weights
  uint8_t low[128];   // per 128 weights 64 bytes: low nibbles 0..63, high nibbles 64..127
  uint8_t high[64];   // per 128 weights 32 bytes: bits 0-1 of weights 0..31, bits 2-3 of 32..63, ...
  int8_t scales[16];
  half_bits d;
};

static_assert(sizeof(BlockQ4_0) == 18, "GGUF Q4_0");
static_assert(sizeof(BlockQ4_1) == 20, "GGUF Q4_1");
static_assert(sizeof(BlockQ8_0) == 34, "GGUF Q8_0");
static_assert(sizeof(BlockQ4_K) == 144, "GGUF Q4_K");
static_assert(sizeof(BlockQ6_K) == 210, "GGUF Q6_K");

}  // namespace kbench
