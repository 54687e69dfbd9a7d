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

struct BlockQ5_0 {  // w = d * (q - 16)
  half_bits d;
  uint8_t high[4];  // bit i of 32: the top bit of weight i
  uint8_t q[16];    // the low nibbles, as in Q4_0
};

struct BlockQ5_1 {  // w = d * q + m
  half_bits d;
  half_bits m;
  uint8_t high[4];  // as in Q5_0
  uint8_t q[16];
};

struct BlockQ8_0 {  // w = d * q
  half_bits d;
  int8_t q[32];
};

struct BlockQ2_K {  // w = (d * sc) * q - (dmin * m), sc and m four bits for each 16 weights
  uint8_t scales[16];  // low nibble: sc, high nibble: m
  uint8_t q[64];       // per 128 weights 32 bytes: bits 0-1 of weights 0..31, bits 2-3 of 32..63, ...
  half_bits d;
  half_bits dmin;
};

struct BlockQ3_K {  // w = (d * (sc - 32)) * (q - 4), sc six bits for each 16 weights
  uint8_t high[32];    // byte i, bit b: the top bit of weight 32 * b + i
  uint8_t q[64];       // the two low bits, as in Q2_K
  uint8_t scales[12];  // see q3_k_scale() in pack_super_blocks.cpp
  half_bits d;
};

struct BlockQ4_K {  // w = (d * sc) * q - (dmin * m), sc and m six bits for each 32 weights
  half_bits d;
  half_bits dmin;
  uint8_t scales[12];  // sc and m of eight blocks, see q4_k_scale_min() in pack_super_blocks.cpp
  uint8_t q[128];      // per 64 weights 32 bytes: low nibbles 0..31, high nibbles 32..63
};

struct BlockQ5_K {  // w = (d * sc) * q - (dmin * m)
  half_bits d;
  half_bits dmin;
  uint8_t scales[12];  // as in Q4_K
  uint8_t high[32];    // byte i, bit b: the top bit of weight 32 * b + i
  uint8_t q[128];      // the low nibbles, as in Q4_K
};

struct BlockQ6_K {  // w = (d * sc) * (q - 32), sc for each 16 weights
  uint8_t low[128];   // per 128 weights 64 bytes: low nibbles 0..63, high nibbles 64..127
  uint8_t high[64];   // per 128 weights 32 bytes: bits 0-1 of weights 0..31, bits 2-3 of 32..63, ...
  int8_t scales[16];
  half_bits d;
};

struct BlockIQ4_NL {  // w = d * value[q] with the 16 values of packed_layout.h
  half_bits d;
  uint8_t q[16];  // as in Q4_0
};

struct BlockIQ4_XS {  // w = (d * (sc - 32)) * value[q], sc six bits for each 32 weights
  half_bits d;
  uint8_t scales_high[2];  // 16 bits: bits 2b, 2b + 1 are the high bits of block b's sc
  uint8_t scales_low[4];   // nibble b: the low bits
  uint8_t q[128];          // per 32 weights 16 bytes, as in Q4_0
};

struct BlockMXFP4 {  // w = 2^(e - 128) * value[q] with the 16 values of packed_layout.h
  uint8_t e;
  uint8_t q[16];  // as in Q4_0
};

static_assert(sizeof(BlockQ4_0) == 18, "GGUF Q4_0");
static_assert(sizeof(BlockQ4_1) == 20, "GGUF Q4_1");
static_assert(sizeof(BlockQ5_0) == 22, "GGUF Q5_0");
static_assert(sizeof(BlockQ5_1) == 24, "GGUF Q5_1");
static_assert(sizeof(BlockQ8_0) == 34, "GGUF Q8_0");
static_assert(sizeof(BlockQ2_K) == 84, "GGUF Q2_K");
static_assert(sizeof(BlockQ3_K) == 110, "GGUF Q3_K");
static_assert(sizeof(BlockQ4_K) == 144, "GGUF Q4_K");
static_assert(sizeof(BlockQ5_K) == 176, "GGUF Q5_K");
static_assert(sizeof(BlockQ6_K) == 210, "GGUF Q6_K");
static_assert(sizeof(BlockIQ4_NL) == 18, "GGUF IQ4_NL");
static_assert(sizeof(BlockIQ4_XS) == 136, "GGUF IQ4_XS");
static_assert(sizeof(BlockMXFP4) == 17, "GGUF MXFP4");

}  // namespace kbench
