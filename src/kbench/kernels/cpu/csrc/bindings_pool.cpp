// Python's view of the thread pool.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "pool.h"

namespace nb = nanobind;

namespace kbench {

void bind_pool(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<ThreadPool>(m, "Pool", "A persistent pool of pinned threads; the calling thread is its first.")
      .def(nb::init<int, const std::vector<int>&>(), "threads"_a = 0, "cpus"_a = std::vector<int>{},
           "threads: the caller included; 0 = one per physical core that this process may run on.\n"
           "cpus: processors to pin to, in order; empty = the affinity mask, one per core first. Raises ValueError.")
      .def_prop_ro("threads", &ThreadPool::threads)
      .def_prop_ro("cpus", &ThreadPool::cpus, "The processor of each thread, -1 where it is not pinned.");
}

}  // namespace kbench
