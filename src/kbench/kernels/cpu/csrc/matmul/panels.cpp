// The panel kernels of one ISA: the code of every shape of a panel. See kernels.h.
#include KBENCH_REGISTERS

#if defined(KBENCH_HAS_REGISTERS)
#include "pair_panel.h"
#if defined(KBENCH_HAS_TILES)
#include "../amx/tile_panel.h"
#endif

namespace kbench {
namespace {

using R = Registers;

#if defined(KBENCH_HAS_TILES)
PanelKernel kernel_for(const PanelFormat& format) { return tile_kernel_for<R>(format); }
#else
template <int most, int scales, bool pairs = R::kPairsRows>
struct Bytes : ByteLines<R, most, scales> {};
template <int most, int scales>
struct Bytes<most, scales, true> : PairLines<R, scales> {};

PanelKernel kernel_for(const PanelFormat& format) {
  if (format.words) {
    if constexpr (R::kHasWords) {
      if (format.offsets == 0) return kernel_of<R, WordLines<R>, 0>();
      if (format.offsets == 1) return kernel_of<R, WordLines<R>, 1>();
      return kernel_of<R, WordLines<R>, 2>();
    }
  }
  if constexpr (R::kScalesDots) {
    if (format.scaled && format.most <= 7) return kernel_of<R, ScaledByteLines<R, 7>, 2>();
    if (format.scaled) return kernel_of<R, ScaledByteLines<R, 63>, 2>();
  } else {
    if (format.scales == 2) return kernel_of<R, Bytes<31, 2>, 2>();
  }
  if constexpr (!R::kShiftsSigned && R::kMostOfBytePanel > 127) {  // signed bytes that are multiplied as they are
    if (format.offsets == 0) return kernel_of<R, Bytes<31, 1>, 0>();
  }
  if constexpr (R::Dots<15, false>::kFit != R::Dots<31, false>::kFit) {
    if (format.most <= 15) return kernel_of<R, Bytes<15, 1>, 1>();
  }
  return kernel_of<R, Bytes<31, 1>, 1>();
}
#endif

}  // namespace
}  // namespace kbench

void kbench::KBENCH_ISA::multiply_panels(const PanelFormat& format, const PackedMatrix& w, const Activation& a,
                                         int64_t tokens, int64_t tile_begin, int64_t tile_end, const float* bias,
                                         float* y, int64_t ldy, const MatmulParameters& p) {
#if defined(KBENCH_HAS_TILES)
  const TileScope tiles(8 / format.scales);
#endif
  multiply_panels_with<Registers>(kernel_for(format), format, w, a, tokens, tile_begin, tile_end, bias, y, ldy, p);
}
#endif
