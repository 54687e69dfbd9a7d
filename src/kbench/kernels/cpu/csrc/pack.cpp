// GGUF rows to packed tiles: see packed_layout.h for what they look like.
#include "pack.h"

namespace kbench {

void pack_tiles(Format format, const uint8_t* raw, int64_t n, int64_t k, uint8_t* out, int64_t tile_begin,
                int64_t tile_end) {
  if (block_elements(format) == 1) return pack_floats(format, raw, n, k, out, tile_begin, tile_end);
  if (block_elements(format) == kBlock) return pack_small_blocks(format, raw, n, k, out, tile_begin, tile_end);
  pack_super_blocks(format, raw, n, k, out, tile_begin, tile_end);
}

}  // namespace kbench
