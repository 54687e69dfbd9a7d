#include "expert_layer.h"

#include <algorithm>
#include <cstring>

namespace kbench {
namespace {

// Columns of gate and up that are made, joined and quantised together: one quantisation block, two tiles.
constexpr int64_t kUnitColumns = 32;
// Temporary results are [kBlockTokens][kBlockColumns] floats: 16 KiB, two of which fit the first-level cache.
constexpr int64_t kBlockTokens = 32;
constexpr int64_t kBlockColumns = 128;
// An expert's weights cost as much to read and unpack as this many tokens cost to multiply.
constexpr int64_t kStreamTokens = 4;
// What a kernel asks for ahead of the weights in use, it cannot ask for across the gap between two matrices.
constexpr int64_t kPrefetchBytes = 2048;

void prefetch(const PackedMatrix& w, int64_t tile) {
  const uint8_t* first = w.data + tile * w.tile_bytes;
  for (int64_t at = 0; at < std::min(kPrefetchBytes, w.tile_bytes); at += kCacheLine) __builtin_prefetch(first + at);
}

}  // namespace

ExpertPlan ExpertLayer::plan(int thread) const {
  return {plans + thread * ExpertPlan::ints(experts(), max_pairs), experts(), max_pairs};
}

int64_t ExpertLayer::own_floats() { return 2 * kBlockTokens * kBlockColumns; }

void ExpertLayer::gather(const Lane& lane, const Activation& x) const {
  const ExpertPlan sorted = plan(lane.thread);
  const Range part = share(sorted.begin[experts()], lane.thread, lane.n_threads);
  for (int64_t p = part.begin; p < part.end; ++p) {
    const Activation from = rows_from(x, sorted.pair[p] / top_k), to = rows_from(rows, p);
    if (to.q != nullptr) {
      const auto planes = static_cast<size_t>(from.planes);
      std::memcpy(to.q, from.q, planes * static_cast<size_t>(k));
      std::memcpy(to.scale, from.scale, planes * static_cast<size_t>(k / 32) * 4);
      std::memcpy(to.sum, from.sum, planes * static_cast<size_t>(k / 16) * 4);
    }
    if (to.x != nullptr) std::memcpy(const_cast<float*>(to.x), from.x, static_cast<size_t>(k) * 4);
  }
}

void ExpertLayer::gate_up(const Lane& lane, const Activation& x) const {
  const ExpertPlan sorted = plan(lane.thread);
  // One token has one row: an expert that is chosen twice (logits of NaN do that) reads it twice.
  const int64_t most = one_token ? 1 : kBlockTokens;
  float* g = own + lane.thread * own_floats();
  float* u = g + kBlockTokens * kBlockColumns;
  const auto block = [&](int64_t e, int64_t c, int64_t columns) {
    const PackedMatrix &wg = gate[static_cast<size_t>(e)], &wu = up[static_cast<size_t>(e)];
    const int64_t tile0 = c / kTileRows, tile1 = (c + columns + kTileRows - 1) / kTileRows;
    for (int64_t p = sorted.begin[e]; p < sorted.begin[e + 1]; p += most) {
      const int64_t tokens = std::min(most, sorted.begin[e + 1] - p);
      const Activation a = rows_from(x, one_token ? 0 : p);
      table.matmul[static_cast<int>(wg.format)](wg, a, tokens, tile0, tile1, nullptr, g - c, kBlockColumns,
                                             parameters);
      table.matmul[static_cast<int>(wu.format)](wu, a, tokens, tile0, tile1, nullptr, u - c, kBlockColumns,
                                             parameters);
      for (int64_t t = 0; t < tokens; ++t) {
        float* row = g + t * kBlockColumns;
        if (hidden.q == nullptr) {
          ops.silu_mul(row, u + t * kBlockColumns, columns, const_cast<float*>(hidden.x) + (p + t) * n + c);
          continue;
        }
        ops.silu_mul(row, u + t * kBlockColumns, columns, row);
        Activation piece = rows_from(hidden, p + t);
        piece.x = row;
        piece.k = piece.ldx = columns;
        piece.ldq = n;
        piece.q += c;
        piece.scale += c / 32;
        piece.sum += c / 16;
        table.quantize(piece, 0, 1);
      }
    }
  };
  sorted.share_units(
      (n + kUnitColumns - 1) / kUnitColumns, lane.thread, lane.n_threads,
      [](int64_t pairs) { return pairs + kStreamTokens; },
      [&](int32_t i, const Range& units) {
        const int64_t e = sorted.active[i], end = std::min(units.end * kUnitColumns, n);
        for (int64_t c = units.begin * kUnitColumns; c < end; c += kBlockColumns) {
          if (c + kBlockColumns >= end && i + 1 < *sorted.n_active) {
            prefetch(gate[static_cast<size_t>(sorted.active[i + 1])], 0);
            prefetch(up[static_cast<size_t>(sorted.active[i + 1])], 0);
          }
          block(e, c, std::min(kBlockColumns, end - c));
        }
      });
  const Range tiles = share(down[0].tiles(), lane.thread, lane.n_threads);
  if (*sorted.n_active > 0 && !tiles.empty()) prefetch(down[static_cast<size_t>(sorted.active[0])], tiles.begin);
}

void ExpertLayer::sum_down(const Lane& lane, const float* weights, int64_t tokens, float* y) const {
  const ExpertPlan sorted = plan(lane.thread);
  const Range tiles = share(down[0].tiles(), lane.thread, lane.n_threads);
  if (tiles.empty()) return;
  float* temporary = own + lane.thread * own_floats();
  const int64_t first = tiles.begin * kTileRows, last = std::min(tiles.end * kTileRows, k);
  for (int64_t t = 0; t < tokens; ++t) std::fill(y + t * k + first, y + t * k + last, 0.0f);
  for (int32_t i = 0; i < *sorted.n_active; ++i) {
    const int64_t e = sorted.active[i];
    const PackedMatrix& w = down[static_cast<size_t>(e)];
    for (int64_t c = first; c < last; c += kBlockColumns) {
      const int64_t columns = std::min(kBlockColumns, last - c);
      const int64_t tile0 = c / kTileRows, tile1 = (c + columns + kTileRows - 1) / kTileRows;
      if (c + columns == last && i + 1 < *sorted.n_active) {
        prefetch(down[static_cast<size_t>(sorted.active[i + 1])], tiles.begin);
      }
      for (int64_t p = sorted.begin[e]; p < sorted.begin[e + 1]; p += kBlockTokens) {
        const int64_t pairs = std::min<int64_t>(kBlockTokens, sorted.begin[e + 1] - p);
        table.matmul[static_cast<int>(w.format)](w, rows_from(hidden, p), pairs, tile0, tile1, nullptr, temporary - c,
                                                 kBlockColumns, parameters);
        for (int64_t t = 0; t < pairs; ++t) {
          const int64_t pair = sorted.pair[p + t];
          ops.add_scaled(temporary + t * kBlockColumns, weights[pair], columns, y + pair / top_k * k + c);
        }
      }
    }
  }
}

}  // namespace kbench
