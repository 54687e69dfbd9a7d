#include "weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>

#include "topology.h"

namespace kbench {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
// Large enough that what is left at a slab's end is nothing beside it (at most one matrix in 64 MiB), small enough that
// a matrix which outlives its neighbours keeps little alive. Memory that no matrix has written is not committed.
constexpr size_t kSlab = size_t{64} << 20;

size_t up_to(size_t multiple, size_t bytes) { return (bytes + multiple - 1) / multiple * multiple; }

std::shared_ptr<uint8_t> allocate(size_t alignment, size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, bytes) != 0) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (bytes >= kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);  // a wish: small pages work too
#endif
  return std::shared_ptr<uint8_t>(static_cast<uint8_t*>(memory), std::free);
}

#ifndef __SANITIZE_ADDRESS__
struct Slab {
  std::weak_ptr<uint8_t> memory;  // owned by its matrices
  size_t used = 0, bytes = 0;
};
std::mutex slab_mutex;
Slab slab;  // the one that is being filled
#endif

}  // namespace

std::shared_ptr<uint8_t> weight_memory(size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  return allocate(kLine, bytes);  // apart, so that a read past a matrix's end is seen
#else
  // A huge page that several small matrices share lies on one node, while each matrix wants its shares on several.
  static const bool several_nodes = memory_nodes().size() > 1;
  if (several_nodes) return allocate(bytes >= kHugePage ? kHugePage : kLine, bytes);
  const std::lock_guard<std::mutex> lock(slab_mutex);
  std::shared_ptr<uint8_t> memory = slab.memory.lock();
  size_t begin = up_to(kLine, slab.used);
  if (memory == nullptr || begin + bytes > slab.bytes) {
    const size_t room = std::max(kSlab, up_to(kHugePage, bytes));
    const bool fuller = memory != nullptr && room - bytes < slab.bytes - slab.used;
    memory = allocate(kHugePage, room);
    if (fuller) return memory;  // than the one that is being filled, which goes on
    slab = {memory, 0, room};
    begin = 0;
  }
  slab.used = begin + bytes;
  return std::shared_ptr<uint8_t>(memory, memory.get() + begin);
#endif
}

}  // namespace kbench
