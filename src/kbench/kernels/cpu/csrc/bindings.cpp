// The Python module: every piece of it binds itself.
#include <nanobind/nanobind.h>

namespace kbench {

void bind_pool(nanobind::module_& m);
void bind_matmul(nanobind::module_& m);
void bind_parameters(nanobind::module_& m);
void bind_program(nanobind::module_& m);
void bind_probes(nanobind::module_& m);
void bind_support(nanobind::module_& m);
void bind_ladder(nanobind::module_& m);

}  // namespace kbench

NB_MODULE(_native, m) {
  // Pools and packed weights that live as long as the process are no leaks: nobody ends them before the interpreter.
  nanobind::set_leak_warnings(false);
  m.doc() = "CPU kernels: packed matrices, a pool of pinned threads, programs of operations, probes.";
  kbench::bind_pool(m);  // first: the others have pools in their signatures
  kbench::bind_matmul(m);
  kbench::bind_parameters(m);
  kbench::bind_program(m);
  kbench::bind_probes(m);
  kbench::bind_support(m);
  kbench::bind_ladder(m);
}
