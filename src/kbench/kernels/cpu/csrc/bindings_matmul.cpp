// Python's view of the matrix kernels: Matrix, pack, matmul, isas.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "activation.h"
#include "dequantize.h"
#include "isa.h"
#include "owned_matrix.h"
#include "packed_layout.h"
#include "pool.h"
#include "raw_tiles.h"

namespace nb = nanobind;

namespace kbench {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Grid = nb::ndarray<const int8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NumpyRows = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// Splits [0, count) evenly over the threads of `pool`, or runs it here when there is none.
template <class Body>
void split(ThreadPool* pool, int64_t count, const Body& body) {
  if (pool == nullptr) {
    body(int64_t{0}, count);
    return;
  }
  pool->run([&](int thread, int n_threads) {
    const int64_t begin = count * thread / n_threads, end = count * (thread + 1) / n_threads;
    if (begin < end) body(begin, end);
  });
}

NumpyRows numpy_rows(std::unique_ptr<float[]> values, int64_t rows, int64_t columns) {
  float* data = values.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return NumpyRows(data, {static_cast<size_t>(rows), static_cast<size_t>(columns)}, owner);
}

std::unique_ptr<float[]> make_floats(int64_t rows, int64_t columns) {
  return std::unique_ptr<float[]>(new float[static_cast<size_t>(std::max<int64_t>(rows * columns, 1))]);
}

// Throws unless `n_raw` bytes are n rows of k weights.
void check_sizes(Format format, int64_t n_raw, int64_t n, int64_t k) {
  const std::string name = format_name(format);
  const int64_t block = block_elements(format);
  if (n < 0) throw std::invalid_argument("n = " + std::to_string(n) + " rows, must be 0 or more");
  if (k < block || k % block != 0) {
    throw std::invalid_argument("k = " + std::to_string(k) + " columns, must be a positive multiple of " +
                                std::to_string(block) + " for " + name);
  }
  // Compared by division: n and k may come from a file, and their product may overflow.
  const int64_t blocks = k / block;
  const bool fits = blocks <= n_raw / block_bytes(format) && n <= n_raw / (blocks * block_bytes(format));
  if (n != 0 ? !fits || n * blocks * block_bytes(format) != n_raw : n_raw != 0) {
    throw std::invalid_argument(std::to_string(n_raw) + " raw bytes, but " + std::to_string(n) + " rows of " +
                                std::to_string(k) + " " + name + " weights take " + std::to_string(n) + " x " +
                                std::to_string(blocks) + " x " + std::to_string(block_bytes(format)));
  }
}

OwnedMatrix pack(const std::string& format_name, const Bytes& raw, int64_t n, int64_t k, ThreadPool* pool) {
  const Format format = format_from_name(format_name.c_str());
  check_sizes(format, static_cast<int64_t>(raw.size()), n, k);
  if (!has_packed_layout(format)) {
    throw std::invalid_argument(format_name + " has no packed layout; accepted: keep_raw()");
  }
  nb::gil_scoped_release release;
  OwnedMatrix matrix(format, n, k);
  const PackedMatrix& view = matrix.view();
  split(pool, view.tiles(), [&](int64_t begin, int64_t end) {
    pack_tiles(format, raw.data(), n, k, view.data, begin, end);
  });
  return matrix;
}

OwnedMatrix keep_raw(const std::string& format_name, const Bytes& raw, int64_t n, int64_t k) {
  const Format format = format_from_name(format_name.c_str());
  check_sizes(format, static_cast<int64_t>(raw.size()), n, k);
  return OwnedMatrix(format, n, k, raw.data());
}

void set_grid_of(const std::string& format_name, const Grid& values) {
  set_grid(format_from_name(format_name.c_str()), values.data(), static_cast<int64_t>(values.size()));
}

NumpyRows unpack_rows(const OwnedMatrix& matrix, const Ids& ids) {
  const PackedMatrix& w = matrix.view();
  const int64_t n_ids = static_cast<int64_t>(ids.size());
  for (int64_t i = 0; i < n_ids; ++i) {
    if (ids.data()[i] < 0 || ids.data()[i] >= w.n) {
      const std::string found = "row " + std::to_string(ids.data()[i]) + " of a matrix of " + std::to_string(w.n);
      throw nb::index_error(found.c_str());
    }
  }
  auto out = make_floats(n_ids, w.k);
  {
    nb::gil_scoped_release release;
    for (int64_t i = 0; i < n_ids; ++i) unpack_row(w, ids.data()[i], out.get() + i * w.k);
  }
  return numpy_rows(std::move(out), n_ids, w.k);
}

NumpyRows matmul(const std::string& isa, const OwnedMatrix& matrix, const Rows& x, const std::optional<Vector>& bias,
                 ThreadPool* pool, int planes, int64_t panel_tokens) {
  const PackedMatrix& w = matrix.view();
  const MatmulTable& table = matmul_table(isa_from_name(isa.c_str()));
  const int64_t tokens = static_cast<int64_t>(x.shape(0));
  if (static_cast<int64_t>(x.shape(1)) != w.k) {
    throw std::invalid_argument("x has " + std::to_string(x.shape(1)) + " columns, the matrix " + std::to_string(w.k));
  }
  if (bias.has_value() && static_cast<int64_t>(bias->size()) != w.n) {
    throw std::invalid_argument("bias has " + std::to_string(bias->size()) + " values, the matrix " +
                                std::to_string(w.n) + " rows");
  }
  if (planes != 1 && planes != 2) throw std::invalid_argument("planes is " + std::to_string(planes) + "; accepted: 1, 2");
  auto y = make_floats(tokens, w.n);
  {
    nb::gil_scoped_release release;
    MatmulParameters p;
    p.panel_tokens = panel_tokens;
    p.planes = planes;
    const KernelChoice kernel = choose_kernel(table, w.format, tokens, planes, p);
    std::vector<uint8_t> memory;
    Activation a;
    if (quantised(w.format)) {
      memory.resize(static_cast<size_t>(activation_bytes(tokens, w.k, planes)) + kLineBytes);
      auto at = reinterpret_cast<uintptr_t>(memory.data());
      at = (at + kLineBytes - 1) / kLineBytes * kLineBytes;
      a = activation_in(reinterpret_cast<uint8_t*>(at), tokens, w.k, planes);
      if (kernel.words) a.q = nullptr;
      else a.words = nullptr;
    }
    a.x = x.data();
    a.ldx = a.k = w.k;
    if (quantised(w.format)) {
      split(pool, tokens, [&](int64_t begin, int64_t end) { table.quantize(a, begin, end); });
    }
    const float* bias_data = bias.has_value() ? bias->data() : nullptr;
    split(pool, w.tiles(), [&](int64_t begin, int64_t end) {
      multiply(kernel.fn, w, a, tokens, begin, end, bias_data, y.get(), w.n, p);
    });
  }
  return numpy_rows(std::move(y), tokens, w.n);
}

bool reads_words(const std::string& isa, const std::string& format, int64_t tokens, int planes, int64_t panel_tokens) {
  MatmulParameters p;
  p.panel_tokens = panel_tokens;
  if (planes != 1 && planes != 2) throw std::invalid_argument("planes is " + std::to_string(planes) + "; accepted: 1, 2");
  return choose_kernel(matmul_table(isa_from_name(isa.c_str())), format_from_name(format.c_str()), tokens, planes, p).words;
}

nb::list isas() {
  nb::list out;
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    out.append(nb::make_tuple(isa_name(isa), isa_missing(isa)));
  }
  return out;
}

}  // namespace

void bind_matmul(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<OwnedMatrix>(m, "Matrix", "A weight matrix for the kernels, packed or raw: n rows (outputs) of k columns.")
      .def_prop_ro("format", [](const OwnedMatrix& w) { return format_name(w.view().format); })
      .def_prop_ro("layout", [](const OwnedMatrix& w) { return w.view().raw != nullptr ? "raw" : "packed"; })
      .def_prop_ro("n", [](const OwnedMatrix& w) { return w.view().n; })
      .def_prop_ro("k", [](const OwnedMatrix& w) { return w.view().k; })
      .def_prop_ro("n_bytes", &OwnedMatrix::n_bytes, "Bytes in memory: packed with rows padded to a multiple of 16, raw as given.")
      .def("unpack_rows", &unpack_rows, "ids"_a,
           "Rows `ids` (int32[:]) dequantised to float32[len(ids), k], exactly as GGUF defines it. Raises IndexError.");
  m.def("pack", &pack, "format"_a, "raw"_a, "n"_a, "k"_a, "pool"_a.none() = nb::none(),
        "Packs `raw` (uint8[:], the GGUF bytes of n rows of k weights) into a Matrix, on the threads of `pool`.\n"
        "Raises ValueError where format, n, k and the size of `raw` do not fit together, or the format has no packed\n"
        "layout.");
  m.def("keep_raw", &keep_raw, "format"_a, nb::arg("raw").noconvert(), "n"_a, "k"_a, nb::keep_alive<0, 2>(),
        "A Matrix that reads `raw` (uint8[:], as for pack()) where it is, without a copy: tiles are packed, or dequantised\n"
        "to float32 where the format has no packed layout, by the threads that multiply them. `raw` is kept alive.\n"
        "Raises ValueError where sizes do not fit, or the format needs a grid that has not been set.");
  m.def("set_grid", &set_grid_of, "format"_a, "values"_a,
        "Hands over the grid (int8[points * width]) of a format that stores indices into one. Raises ValueError for\n"
        "another size, a format without a grid, or another grid than before.");
  m.def("matmul", &matmul, "isa"_a, "w"_a, "x"_a, "bias"_a.none() = nb::none(), "pool"_a.none() = nb::none(), "planes"_a = 1,
        "panel_tokens"_a = 0,
        "x (float32[tokens, k]) times the transposed matrix, plus bias (float32[n]): float32[tokens, n].\n"
        "Quantised formats multiply x rounded in blocks of 32: to one or two planes of int8 where there are fewer tokens\n"
        "than panel_tokens (0: the kernels' own switch point), else to what reads_words() says. Raises ValueError.");
  m.def("reads_words", &reads_words, "isa"_a, "format"_a, "tokens"_a, "planes"_a, "panel_tokens"_a = 0,
        "Whether that product rounds x to int16 of 14 bits instead of planes of int8.");
  m.def("isas", &isas, "(name, why it cannot run here or '') of every instruction set of this build, slowest first.");
}

}  // namespace kbench
