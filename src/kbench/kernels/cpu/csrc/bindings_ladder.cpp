// Python's view of the optimisation ladder.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "aligned_buffer.h"
#include "ladder/steps.h"
#include "pool.h"

namespace nb = nanobind;

namespace kbench {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutVector = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutIds = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutCache = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

void check(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

// A matrix in the form that a step reads: the bytes that it was made from, or a copy in another order.
class LadderMatrix {
 public:
  LadderMatrix(const std::string& step, Bytes raw, int64_t n, int64_t k, ThreadPool& pool)
      : step_(ladder::step_from_name(step)), raw_(std::move(raw)), n_(n), k_(k) {
    const int64_t block = step_.q8_0 ? ladder::kBlock : 1;
    const int64_t block_bytes = step_.q8_0 ? int64_t{sizeof(ladder::BlockQ8_0)} : int64_t{sizeof(float)};
    check(n >= 0 && k >= 1 && k % block == 0, "n must be 0 or more, k a positive number of whole blocks");
    const int64_t n_raw = static_cast<int64_t>(raw_.size());
    check(n_raw % block_bytes == 0 && n_raw / block_bytes % (k / block) == 0 && n_raw / block_bytes / (k / block) == n,
          "the bytes are not those of n rows of k weights");
    check(reinterpret_cast<uintptr_t>(raw_.data()) % (step_.q8_0 ? 2 : 4) == 0, "the bytes are not aligned");
    if (step_.aligned) {
      sorted_ = std::make_unique<AlignedBuffer>(ladder::aligned_bytes(n, k));
      nb::gil_scoped_release release;
      ladder::align(reinterpret_cast<const ladder::BlockQ8_0*>(raw_.data()), n, k, sorted_->data(), pool);
    }
    if (step_.scratch) scratch_ = std::make_unique<AlignedBuffer>(n * k * int64_t{sizeof(float)});
  }

  int64_t n_bytes() const {
    return (step_.aligned ? ladder::aligned_bytes(n_, k_) : static_cast<int64_t>(raw_.size())) +
           (step_.scratch ? n_ * k_ * int64_t{sizeof(float)} : 0);
  }

  void run(const Rows& x, const OutRows& y, ThreadPool& pool) const {
    check(static_cast<int64_t>(x.shape(1)) == k_ && static_cast<int64_t>(y.shape(1)) == n_ && x.shape(0) == y.shape(0),
          "x must be [tokens, k] and y [tokens, n]");
    check(step_.run != nullptr, "this step's code is for x86-64");
    ladder::Linear call;
    call.w = sorted_ ? sorted_->data() : raw_.data();
    call.x = x.data();
    call.y = y.data();
    call.n = n_;
    call.k = k_;
    call.tokens = static_cast<int64_t>(x.shape(0));
    call.scratch = scratch_ ? reinterpret_cast<float*>(scratch_->data()) : nullptr;
    nb::gil_scoped_release release;
    step_.run(call, pool);
  }

 private:
  const ladder::Step& step_;
  Bytes raw_;
  int64_t n_, k_;
  std::unique_ptr<AlignedBuffer> sorted_, scratch_;
};

void attention(bool split, const Vector& q, const Vector& k, const Vector& v, const OutCache& k_cache,
               const OutCache& v_cache, int64_t position, float scale, const OutVector& y, ThreadPool& pool) {
  ladder::Attention call;
  call.kv_heads = static_cast<int64_t>(k_cache.shape(0));
  call.capacity = static_cast<int64_t>(k_cache.shape(1));
  call.d = static_cast<int64_t>(k_cache.shape(2));
  check(call.kv_heads > 0 && call.d > 0 && q.size() % (k_cache.shape(0) * k_cache.shape(2)) == 0 &&
            q.size() == y.size(),
        "q and y must be [heads * d], heads a multiple of the cache's");
  for (size_t i = 0; i < 3; ++i) check(v_cache.shape(i) == k_cache.shape(i), "the caches differ in shape");
  check(static_cast<int64_t>(k.size()) == call.kv_heads * call.d && v.size() == k.size(),
        "k and v must be [kv_heads * d]");
  check(position >= 0 && position < call.capacity, "the position is outside the cache");
  call.q = q.data();
  call.k = k.data();
  call.v = v.data();
  call.k_cache = k_cache.data();
  call.v_cache = v_cache.data();
  call.y = y.data();
  call.heads = static_cast<int64_t>(q.size()) / call.d;
  call.position = position;
  call.scale = scale;
  nb::gil_scoped_release release;
  (split ? ladder::split_kv : ladder::whole_heads)(call, pool);
}

void top_logits(bool partial, const Vector& logits, const OutIds& ids, const OutVector& values) {
  check(ids.size() == values.size() && ids.size() <= logits.size(), "ids and values must be [top_k], top_k <= vocab");
  const ladder::TopLogits call{logits.data(), ids.data(), values.data(), static_cast<int64_t>(logits.size()),
                               static_cast<int64_t>(ids.size())};
  nb::gil_scoped_release release;
  (partial ? ladder::partial_sort : ladder::full_sort)(call);
}

nb::list steps() {
  nb::list out;
  for (const ladder::Step& step : ladder::steps()) {
    out.append(nb::make_tuple(step.name, step.change, step.isa, step.q8_0 ? "Q8_0" : "F32", step.int8));
  }
  return out;
}

}  // namespace

void bind_ladder(nb::module_& m) {
  using namespace nb::literals;
  m.def("ladder_steps", &steps, "(name, change, instruction set, weight type, int8 activations?) of every step.");
  nb::class_<LadderMatrix>(m, "LadderMatrix", "A matrix as one step of the optimisation ladder reads it.")
      .def(nb::init<const std::string&, Bytes, int64_t, int64_t, ThreadPool&>(), "step"_a, "raw"_a, "n"_a, "k"_a,
           "pool"_a, "`raw` (uint8[:], kept, not copied): the GGUF bytes of n rows of k weights. Raises ValueError.")
      .def_prop_ro("n_bytes", &LadderMatrix::n_bytes)
      .def("run", &LadderMatrix::run, "x"_a, "y"_a, "pool"_a,
           "Writes x (float32[tokens, k]) times the transposed matrix to y (float32[tokens, n]). Raises ValueError.");
  m.def("ladder_attention", &attention, "split"_a, "q"_a, "k"_a, "v"_a, "k_cache"_a, "v_cache"_a, "position"_a,
        "scale"_a, "y"_a, "pool"_a,
        "Attention of one token over float32 caches [kv_heads, capacity, d], threads sharing whole heads or (split)\n"
        "parts of every head's cache. Raises ValueError.");
  m.def("ladder_top_logits", &top_logits, "partial"_a, "logits"_a, "ids"_a, "values"_a,
        "Writes the largest logits, largest first, by a full or a partial sort. Raises ValueError.");
}

}  // namespace kbench
