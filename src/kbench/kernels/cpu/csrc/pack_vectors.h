// Four rows at a time: the transpositions that packing is made of, on 16-byte vectors in the compiler's own notation,
// so that one text serves every CPU that has such vectors (SSE2 and NEON are part of the base instruction set).
//
// After transpose(), word r of vector c is word c of row r: a vector is four rows' share of a line. What a format does to
// bits then happens to four rows at once. Two pieces of equal size change places between two vectors by three XORs.
#pragma once
#include <cstdint>
#include <cstring>

#include "packed_layout.h"

namespace kbench {

using Words = uint32_t __attribute__((vector_size(16)));
using Shorts = uint16_t __attribute__((vector_size(16)));
using Octets = uint8_t __attribute__((vector_size(16)));

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define KBENCH_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif
#if !defined(KBENCH_SHUFFLE)  // GCC 11
#define KBENCH_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype(a){__VA_ARGS__})
#endif

static inline Words load_words(const uint8_t* p) {
  Words value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

static inline void store_words(uint8_t* p, Words value) { std::memcpy(p, &value, sizeof value); }

static inline uint32_t load_word(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

static inline uint16_t load_short(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// The word at `offset` of each of four blocks.
static inline Words load_column(const uint8_t* const* blocks, int64_t offset) {
  return Words{load_word(blocks[0] + offset), load_word(blocks[1] + offset), load_word(blocks[2] + offset),
               load_word(blocks[3] + offset)};
}

static inline void transpose(Words* v) {
  const Words a = KBENCH_SHUFFLE(v[0], v[1], 0, 4, 1, 5), b = KBENCH_SHUFFLE(v[2], v[3], 0, 4, 1, 5);
  const Words c = KBENCH_SHUFFLE(v[0], v[1], 2, 6, 3, 7), d = KBENCH_SHUFFLE(v[2], v[3], 2, 6, 3, 7);
  v[0] = KBENCH_SHUFFLE(a, b, 0, 1, 4, 5);
  v[1] = KBENCH_SHUFFLE(a, b, 2, 3, 6, 7);
  v[2] = KBENCH_SHUFFLE(c, d, 0, 1, 4, 5);
  v[3] = KBENCH_SHUFFLE(c, d, 2, 3, 6, 7);
}

// Four vectors that are 16 bytes at `offset` of each of four blocks, transposed.
static inline void load_transposed(const uint8_t* const* blocks, int64_t offset, Words* v) {
  for (int r = 0; r < 4; ++r) v[r] = load_words(blocks[r] + offset);
  transpose(v);
}

// Swaps the pieces of `a` that stand `shift` bits above `mask` with the pieces of `b` under `mask`.
static inline void swap_pieces(Words& a, Words& b, int shift, uint32_t mask) {
  const Words moved = ((a >> shift) ^ b) & mask;
  b ^= moved;
  a ^= moved << shift;
}

// Piece p of vector c becomes piece c of vector p, byte by byte: nibbles of 2 vectors, pairs of bits of 4, bits of 8.
static inline void transpose_nibbles(Words& a, Words& b) { swap_pieces(a, b, 4, 0x0f0f0f0fu); }

static inline void transpose_crumbs(Words* v) {
  for (int i = 0; i < 4; i += 2) swap_pieces(v[i], v[i + 1], 2, 0x33333333u);
  for (int i = 0; i < 2; ++i) swap_pieces(v[i], v[i + 2], 4, 0x0f0f0f0fu);
}

static inline void transpose_bits(Words* v) {
  for (int i = 0; i < 8; i += 2) swap_pieces(v[i], v[i + 1], 1, 0x55555555u);
  for (int i = 0; i < 8; ++i) {
    if (i % 4 < 2) swap_pieces(v[i], v[i + 2], 2, 0x33333333u);
  }
  for (int i = 0; i < 4; ++i) swap_pieces(v[i], v[i + 4], 4, 0x0f0f0f0fu);
}

// Bits 4q + j of a word, q = 0..7, to bits 8j + q: a place's five binary digits q2 q1 q0 j1 j0 become j1 j0 q2 q1 q0 by
// swapping two digits at a time.
static inline Words spread_bits(Words v) {
  const auto swap_digits = [&v](int shift, uint32_t mask) {
    const Words moved = ((v >> shift) ^ v) & mask;
    v ^= moved ^ (moved << shift);
  };
  swap_digits(14, 0x0000ccccu);
  swap_digits(7, 0x00aa00aau);
  swap_digits(2, 0x0c0c0c0cu);
  swap_digits(1, 0x22222222u);
  return v;
}

// Byte i of word r becomes byte r of word i.
static inline Words transpose_bytes(Words v) {
  Octets bytes = (Octets)v;
  for (int round = 0; round < 2; ++round) {
    const Words upper = KBENCH_SHUFFLE((Words)bytes, (Words)bytes, 2, 3, 2, 3);
    bytes = KBENCH_SHUFFLE(bytes, (Octets)upper, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  }
  return (Words)bytes;
}

}  // namespace kbench
