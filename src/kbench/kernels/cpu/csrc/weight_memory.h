// Where packed weights lie: slabs of huge pages that matrices share.
//
//   slab   |<------------------------- 64 MiB, huge pages ------------------------->|
//          | gate of expert 0 | up 0 | down 0 | gate of expert 1 | ...      |  free  |
//
// A decoding thread walks gigabytes of weights. Through 4 KiB pages it waits for address translation at each, and the
// hardware's prefetchers stop at each page's end. A matrix with memory of its own gets huge pages for its whole
// 2 MiB pieces only: of DeepSeek-V2-Lite's experts, 1.9 to 3.2 MB each, four fifths would lie in small pages.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace kbench {

// `bytes` of memory, aligned to a cache line and not yet written: the threads that pack touch it first, so that it
// lies near them on machines with several memory nodes; there each matrix has memory of its own. A slab goes back to
// the system with the last of its matrices. Safe to call from several threads. Throws std::bad_alloc.
std::shared_ptr<uint8_t> weight_memory(size_t bytes);

}  // namespace kbench
