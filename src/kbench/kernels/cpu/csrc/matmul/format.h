// How each quantised format is unpacked, written once for all ISAs over R, the registers of an ISA (avx2/registers.h
// says what those offer). Layouts: packed_layout.h.
//
// A format W<R> is a cursor over the blocks of 32 weights of some rows of a tile: R::kRows rows from register `reg` on.
//   kMost, kSigned   weights are bytes 0..kMost, or -kMost..127
//   kZero            w = scale * (byte - kZero) + minimum
//   kGroups          scales per block of 32: 1, or 2 (one for each 16)
//   kMinimum         whether there are minima, one for each scale
//   kIntegerScales   whether a group's scale is an integer times what step() returns
//   kBlocks          blocks of 32 per step: 8 where a super-block of 256 shares something
//   kUnits, kQuads   a block is unpacked in kUnits parts, each of kQuads quads (four weights of each row); quad(u, i)
//                    is the place in the block, 0..7, of the i-th quad of part u
//   W(tile, k, block, reg, ahead)   ahead: how many bytes ahead of the weights in use the next ones are asked for
//   begin<H>()       loads what the blocks of a step share, for H registers
//   step(h)          that scale (kIntegerScales)
//   scale(b, g, h), minimum(b, g, h), pairs(b, g, h)   of group g of block b; pairs: the integer scale twice as int16
//   unpack(b, u, h, w)              w[kQuads] of part u of block b
//   advance()        to the next step
#pragma once
#include "../packed_layout.h"

namespace kbench {
namespace {

// A prefetch past the end is harmless: it never faults.
inline void prefetch(const uint8_t* line) { __builtin_prefetch(line); }

// How far ahead scales are asked for that lie in a plane of their own, behind the quants of `blocks` steps: a whole
// tile, to where the next tile's are. `ahead` of them lie other weights, and a tile's first scale would be waited for.
// Where nothing is asked for ahead, they are not either.
constexpr int64_t scales_ahead(int64_t ahead, int64_t blocks, int64_t quants_bytes, int64_t scales_bytes) {
  return ahead > 0 ? blocks * quants_bytes + whole_lines(blocks * scales_bytes) : 0;
}

// The nibbles of line u hold quads u and 4 + u.
struct NibbleParts {
  static constexpr int kUnits = 4, kQuads = 2;
  static constexpr int quad(int unit, int i) { return unit + 4 * i; }
};

template <class R>
inline void unpack_nibbles(const uint8_t* line, typename R::Int* w) {
  const typename R::Int raw = R::load(line), mask = R::bytes(15);
  w[0] = R::and_(raw, mask);
  w[1] = R::and_(R::template right<4>(raw), mask);
}

}  // namespace
}  // namespace kbench
