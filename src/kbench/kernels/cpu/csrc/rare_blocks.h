// The weight blocks of the formats without a packed layout, byte for byte; see blocks.h.
#pragma once
#include <cstdint>

#include "blocks.h"

namespace kbench {

struct BlockTQ1_0 {    // w = d * (digit - 1), five ternary digits a byte
  uint8_t q[48];       // digit 0 of bytes 0..31, digit 1 of bytes 0..31, ..., then digit 0 of bytes 32..47, ...
  uint8_t high[4];     // four digits each, in the same order
  half_bits d;
};

struct BlockTQ2_0 {    // w = d * (q - 1)
  uint8_t q[64];       // per 128 weights 32 bytes: bits 0-1 of weights 0..31, bits 2-3 of 32..63, ...
  half_bits d;
};

struct BlockNVFP4 {    // w = d * value[q] with the values of MXFP4, d for each 16 weights
  uint8_t d[4];        // unsigned e4m3
  uint8_t q[32];       // per 16 weights 8 bytes: low nibbles 0..7, high nibbles 8..15
};

// A grid point is 8 (IQ3: 4) neighbouring weights without their signs. A sign index of 7 bits stands for 8 signs of which
// an even number is negative: the eighth is the parity of the others.

struct BlockIQ2_XXS {  // w = d * (1/2 + sc) / 4 * grid * sign
  half_bits d;
  uint8_t q[64];       // per 32 weights: 4 bytes of grid indices, then 4 x 7 bits of sign indices and 4 bits of sc
};

struct BlockIQ2_XS {   // as IQ2_XXS, sc for each 16 weights
  half_bits d;
  uint8_t q[64];       // 16 bits for each 8 weights: 9 of grid index, 7 of sign index
  uint8_t scales[8];   // low nibble: the first 16 of 32 weights
};

struct BlockIQ2_S {    // as IQ2_XS
  half_bits d;
  uint8_t q[32];       // the low 8 of 10 bits of grid index
  uint8_t signs[32];   // a bit for each weight
  uint8_t high[8];     // bits 2i, 2i + 1: the high bits of the i-th of four grid indices
  uint8_t scales[8];
};

struct BlockIQ3_XXS {  // w = d * (1/2 + sc) / 2 * grid * sign
  half_bits d;
  uint8_t q[64];       // grid indices
  uint8_t signs[32];   // per 32 weights 4 x 7 bits of sign indices and 4 bits of sc
};

struct BlockIQ3_S {    // w = d * (1 + 2 sc) * grid * sign, sc for each 32 weights
  half_bits d;
  uint8_t q[64];       // the low 8 of 9 bits of grid index
  uint8_t high[8];     // the high bit of eight grid indices
  uint8_t signs[32];   // a bit for each weight
  uint8_t scales[4];
};

struct BlockIQ1_S {    // w = d * (1 + 2 sc) * (grid +- 1/8)
  half_bits d;
  uint8_t q[32];       // the low 8 of 11 bits of grid index
  uint8_t high[16];    // 16 bits per 32 weights: 4 x 3 high bits of grid indices, 3 bits of sc, the sign of 1/8
};

struct BlockIQ1_M {    // as IQ1_S, sc for each 16 weights
  uint8_t q[32];
  uint8_t high[16];    // nibble per 8 weights: 3 high bits of the grid index, the sign of 1/8
  uint8_t scales[8];   // four 16-bit words: 4 x 3 bits of sc; their high nibbles together are d, lowest first
};

static_assert(sizeof(BlockTQ1_0) == 54, "GGUF TQ1_0");
static_assert(sizeof(BlockTQ2_0) == 66, "GGUF TQ2_0");
static_assert(sizeof(BlockNVFP4) == 36, "GGUF NVFP4");
static_assert(sizeof(BlockIQ2_XXS) == 66, "GGUF IQ2_XXS");
static_assert(sizeof(BlockIQ2_XS) == 74, "GGUF IQ2_XS");
static_assert(sizeof(BlockIQ2_S) == 82, "GGUF IQ2_S");
static_assert(sizeof(BlockIQ3_XXS) == 98, "GGUF IQ3_XXS");
static_assert(sizeof(BlockIQ3_S) == 110, "GGUF IQ3_S");
static_assert(sizeof(BlockIQ1_S) == 50, "GGUF IQ1_S");
static_assert(sizeof(BlockIQ1_M) == 56, "GGUF IQ1_M");

}  // namespace kbench
