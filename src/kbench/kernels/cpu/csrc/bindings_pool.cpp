// Python's view of the thread pool and of the machine that it is laid out on.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "pool.h"
#include "topology.h"

namespace nb = nanobind;

namespace kbench {

void bind_pool(nb::module_& m) {
  using namespace nb::literals;
  using Ints = std::vector<int>;
  nb::class_<ThreadPool>(m, "Pool", "A persistent pool of pinned threads; the calling thread is its first.")
      .def(
          "__init__",
          [](ThreadPool* place, int threads, const Ints& cpus, int node) {
            if (!cpus.empty() && node >= 0) throw std::invalid_argument("cpus and node are given; accepted: one of them");
            if (cpus.empty()) {
              new (place) ThreadPool(threads, node);
            } else {
              new (place) ThreadPool(threads, cpus);
            }
          },
          "threads"_a, "cpus"_a = Ints{}, "node"_a = -1,
          "threads: the caller included.\n"
          "cpus: processors to pin to, in order; empty = the affinity mask, spread over the memory nodes.\n"
          "node: the memory node to stay on. Raises ValueError.")
      .def_prop_ro("threads", &ThreadPool::threads)
      .def_prop_ro("cpus", &ThreadPool::cpus, "The processor of each thread, -1 where it is not pinned.");
  m.def(
      "memory_nodes",
      [](const std::string& root) {
        std::vector<std::tuple<int, Ints, int64_t>> nodes;
        for (const MemoryNode& node : memory_nodes(root)) nodes.emplace_back(node.id, node.cpus, node.memory_bytes);
        return nodes;
      },
      "root"_a = "", "(id, processors, bytes of memory) of each memory node with processors, under `root`/sys.");
  m.def("place_threads", &place_threads, "threads"_a, "allowed"_a, "node"_a = -1, "root"_a = "",
        "The processor of each thread of a pool, -1 where it is not pinned. Raises ValueError.");
}

}  // namespace kbench
