// Python's view of what this build offers: for `kbench doctor`.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "isa.h"

namespace nb = nanobind;

namespace kbench {
namespace {

nb::dict isa_tests_by_name() {
  nb::dict out;
  for (int i = 0; i < kIsaCount; ++i) out[isa_name(static_cast<Isa>(i))] = isa_tests(static_cast<Isa>(i));
  return out;
}

// The lowest instruction set below `name` with the same kernel: the one that it was written for. Formats without a
// packed layout have none: they are dequantised, and F32's kernel multiplies them.
nb::dict kernel_sources(const std::string& name) {
  const Isa isa = isa_from_name(name.c_str());
  const MatmulTable& table = matmul_table(isa);
  nb::dict out;
  for (int f = 0; f < kPackedFormatCount; ++f) {
    if (table.matmul[f] == nullptr) continue;
    Isa source = isa;
    while (source != Isa::scalar && matmul_table(isa_parent(source)).matmul[f] == table.matmul[f]) {
      source = isa_parent(source);
    }
    out[format_name(static_cast<Format>(f))] = isa_name(source);
  }
  return out;
}

}  // namespace

void bind_support(nb::module_& m) {
  using namespace nb::literals;
  m.def("isa_tests", &isa_tests_by_name, "How the kernels of each instruction set are tested, by its name.");
  m.def("kernel_sources", &kernel_sources, "isa"_a,
        "For each format that `isa` (which must run here) multiplies from packed weights, the instruction set whose\n"
        "kernel does it: its own or a lower one's.");
}

}  // namespace kbench
