// Decides while recording where a barrier is needed: wherever a thread may touch memory that another thread touched
// since the last barrier, one of the two writing.
#pragma once
#include <cstdint>
#include <vector>

namespace kbench {

// Who touches which part of a piece of memory. Two accesses of the same memory with equal splits other than `any`
// touch the same bytes on the same thread and need no barrier between them.
struct Split {
  enum Kind {
    any,      // any thread any part
    first,    // thread 0 alone
    columns,  // the columns of the row-major [rows, width] floats that its tiles of 16 make
    rows,     // a share of the token rows of `width` bytes
  };
  Kind kind = any;
  int64_t width = 0;
  int threads = 0;
  bool operator==(const Split& o) const { return kind == o.kind && width == o.width && threads == o.threads; }
};

struct Access {
  const void* begin = nullptr;
  int64_t n_bytes = 0;
  bool write = false;
  Split split;
};

class Hazards {
 public:
  // Whether a stage with these accesses must wait for a barrier; notes them either way.
  bool needs_barrier(const std::vector<Access>& accesses);
  // The split by which [begin, begin + n_bytes) was written since the last barrier; `any` if there is no single one.
  Split written(const void* begin, int64_t n_bytes) const;

 private:
  std::vector<Access> pending_;
};

bool overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes);

}  // namespace kbench
