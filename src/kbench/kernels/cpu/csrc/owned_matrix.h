// A matrix and the memory that holds it: its own where it is packed, the caller's where it is raw.
#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "matrix.h"
#include "raw_tiles.h"

namespace kbench {

class OwnedMatrix {
 public:
  OwnedMatrix() = default;

  // Memory for n x k weights, not yet written: the threads that call pack_tiles() touch it first, so that it lies near
  // them on machines with several memory nodes. Throws std::bad_alloc.
  OwnedMatrix(Format format, int64_t n, int64_t k) {
    view_.format = format;
    view_.n = n;
    view_.k = k;
    view_.tile_bytes = packed_tile_bytes(format, k);
    const size_t bytes = static_cast<size_t>(n_bytes());
    if (bytes == 0) return;
    // From one huge page upwards, start on a huge page and ask for them: a decoding thread that walks gigabytes
    // through 4 KiB pages spends its time on address translation. No rounding up: the end stays in small pages.
    const size_t alignment = bytes >= kHugePage ? kHugePage : kLine;
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc();
    memory_.reset(static_cast<uint8_t*>(memory));
#ifdef MADV_HUGEPAGE
    if (bytes >= kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: small pages work too
#endif
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
  static constexpr size_t kHugePage = size_t{2} << 20;
  static constexpr size_t kLine = 64;
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint8_t, Free> memory_;
  PackedMatrix view_;
};

}  // namespace kbench
