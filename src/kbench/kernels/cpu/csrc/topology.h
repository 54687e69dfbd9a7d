// Memory nodes, cores and processors of this machine, and where the threads of a pool go.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kbench {

// A NUMA node: its processors, and the bytes of its memory (0: unknown).
struct MemoryNode {
  int id = 0;
  std::vector<int> cpus;
  int64_t memory_bytes = 0;
};

// The nodes with processors, by id, as <root>/sys/devices/system/node tells them; none where it tells nothing.
std::vector<MemoryNode> memory_nodes(const std::string& root = "");

// Processors that this process may run on; none where the system does not say.
std::vector<int> allowed_cpus();

// What identifies the physical core of `cpu`: the kernel's list of its SMT siblings.
std::string core_of(int cpu, const std::string& root = "");

// A processor for each thread, -1 for those that are not pinned.
//
// Threads are spread over the nodes in proportion to their cores, so that weights are read through all memory
// controllers, and their numbers are grouped by node, so that neighbouring shares of a matrix lie together:
//
//   two nodes of 4 cores, 4 threads     node 0: threads 0 1 on cores 0 1     node 1: threads 2 3 on cores 4 5
//
// Within a node one processor of each core comes first, then the SMT siblings. More threads than processors: none is
// pinned, the scheduler spreads them best. A single thread has nobody to collide with and is not pinned either.
// With a `node` all threads are pinned there. Throws std::invalid_argument where it has too few allowed processors.
std::vector<int> place_threads(int threads, const std::vector<int>& allowed, int node = -1,
                               const std::string& root = "");

}  // namespace kbench
