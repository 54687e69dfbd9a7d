// Python's view of the probes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "probes.h"

namespace nb = nanobind;

namespace kbench {

void bind_probes(nb::module_& m) {
  using namespace nb::literals;
  m.def("read_bandwidth", &read_bandwidth, "pool"_a, "n_bytes"_a, "seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Bytes per second that all threads of `pool` read from a buffer of `n_bytes`: the best of the passes that fit\n"
        "into `seconds`. Raises ValueError.");
  m.def("read_rates", &read_rates, "pool"_a, "n_bytes"_a, "seconds"_a, nb::call_guard<nb::gil_scoped_release>(),
        "The same of each pass, list[float].");
  m.def(
      "arithmetic_peak",
      [](ThreadPool& pool, const std::string& isa, const std::string& kind, double seconds) {
        const Isa which = isa_from_name(isa.c_str());
        nb::gil_scoped_release release;
        return arithmetic_peak(pool, which, kind, seconds);
      },
      "pool"_a, "isa"_a, "kind"_a, "seconds"_a,
      "Operations per second (a multiply-add is two) of kind int8, f32 or bf16 on registers alone: the best of the\n"
      "passes that fit into `seconds`. Raises ValueError where the ISA has no such arithmetic.");
}

}  // namespace kbench
