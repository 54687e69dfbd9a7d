// A matrix and the memory that holds it: its own where it is packed, the caller's where it is raw.
#pragma once
#include <memory>

#include "matrix.h"
#include "raw_tiles.h"
#include "weight_memory.h"

namespace kbench {

class OwnedMatrix {
 public:
  OwnedMatrix() = default;

  // Memory for n x k weights, not yet written. Throws std::bad_alloc.
  OwnedMatrix(Format format, int64_t n, int64_t k) {
    view_.format = format;
    view_.n = n;
    view_.k = k;
    view_.tile_bytes = packed_tile_bytes(format, k);
    if (n_bytes() == 0) return;
    memory_ = weight_memory(static_cast<size_t>(n_bytes()));
    view_.data = memory_.get();
  }

  // n GGUF rows of k weights at `raw`, which must stay where they are. Throws std::invalid_argument for a format whose
  // grid has not been set.
  OwnedMatrix(Format format, int64_t n, int64_t k, const uint8_t* raw) {
    check_readable(format);
    view_.format = format;
    view_.n = n;
    view_.k = k;
    view_.raw = raw;
  }

  const PackedMatrix& view() const { return view_; }
  // Of a raw matrix: the bytes of the rows.
  int64_t n_bytes() const {
    return view_.raw != nullptr ? view_.n * raw_row_bytes(view_.format, view_.k) : view_.tiles() * view_.tile_bytes;
  }

 private:
  std::shared_ptr<uint8_t> memory_;
  PackedMatrix view_;
};

}  // namespace kbench
