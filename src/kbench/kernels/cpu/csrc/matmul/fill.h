// Puts the kernels of a quantised format into the table of the ISA that this file is compiled for.
#pragma once
#include "kernels.h"
#include "pair_panel.h"

namespace kbench {
namespace {

template <template <class> class Format_, Format format>
void fill_quantised(MatmulTable& table) {
  using R = Registers;
  using W = Format_<R>;
  constexpr int at = static_cast<int>(format);
  // A byte panel reads one plane. Two scales per block are either two scales of floats, or integers that multiply sums.
  constexpr bool kBytes =
      W::kMost <= R::kMostOfBytePanel && (W::kGroups == 1 || W::kIntegerScales || !R::kScalesDots);
  if constexpr (R::kHasLines) table.matmul[at] = multiply_tiles<LineKernel<R, W>>;
  for (int planes = 1; planes <= 2; ++planes) table.panel_tokens[at][planes - 1] = R::panel_tokens(W::kMost, planes);
  if constexpr (kBytes && R::kPairsRows) {
    table.panel_bytes[at] = multiply_panels_of<R, W, PairPanel<R, W>>;
  } else if constexpr (kBytes) {
    table.panel_bytes[at] = multiply_panels_of<R, W, BytePanel<R, W>>;
  } else {
    table.panel_bytes[at] = nullptr;
  }
  if constexpr (R::kHasWords) {
    table.panel_words[at] = multiply_panels_of<R, W, WordPanel<R, W>>;
  } else {
    table.panel_words[at] = nullptr;
  }
}

}  // namespace
}  // namespace kbench
