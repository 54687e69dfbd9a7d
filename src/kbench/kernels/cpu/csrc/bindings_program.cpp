// Python's view of programs: arguments checked, arrays and matrices kept alive.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "launch.h"
#include "owned_matrix.h"
#include "program.h"

namespace nb = nanobind;

namespace kbench {
namespace {

// Weights are copied: any float vector will do. What is written to, or read again at every run, is taken as it is:
// nanobind would convert another type or layout by a copy, and writes to a copy are lost.
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using AnyArray = nb::ndarray<nb::device::cpu>;
using AnyReadable = nb::ndarray<nb::ro, nb::device::cpu>;

template <typename Array>
void check_layout(const Array& x, size_t dimensions, const char* name) {
  bool contiguous = x.ndim() == dimensions;
  int64_t stride = 1;
  for (size_t i = x.ndim(); contiguous && i-- > 0; stride *= static_cast<int64_t>(x.shape(i))) {
    contiguous = x.shape(i) <= 1 || x.stride(i) == stride;
  }
  if (contiguous) return;
  throw std::invalid_argument(std::string(name) + " has " + std::to_string(x.ndim()) +
                              " dimensions or gaps; accepted: " + std::to_string(dimensions) + ", C-contiguous");
}

template <typename T, typename Array>
void check_type(const Array& x, const char* name, const char* accepted) {
  if (x.dtype() != nb::dtype<T>())
    throw std::invalid_argument(std::string(name) + " has another type; accepted: " + accepted);
}

std::vector<float> floats(const std::optional<Vector>& x) {
  return x.has_value() ? std::vector<float>(x->data(), x->data() + x->size()) : std::vector<float>();
}

Isa isa(const std::string& name) { return isa_from_name(name.c_str()); }

// What the array's type stands for; throws for any other.
CacheType cache_type(const AnyArray& cache, const char* name) {
  const nb::dlpack::dtype type = cache.dtype();
  if (type == nb::dtype<float>()) return CacheType::f32;
  if (type == nb::dtype<uint16_t>()) return CacheType::bf16;
  if (type == nb::dtype<uint8_t>()) return CacheType::q8_0;
  if (type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) && type.bits == 16 && type.lanes == 1)
    return CacheType::f16;
  throw std::invalid_argument(std::string(name) + " has another type; accepted: float32, float16, uint16 (bf16), " +
                              "uint8 (q8_0)");
}

// (sequences x) heads x capacity x a row of d elements, which for q8_0 counts bytes.
void check_shape(const AnyArray& cache, const char* name, int64_t heads, int64_t d) {
  check_layout(cache, cache.ndim() == 4 ? 4 : 3, name);
  const size_t first = cache.ndim() - 3;
  const CacheType type = cache_type(cache, name);
  if (!cache_takes(type, d)) return;  // the program says so
  if (type == CacheType::q8_0) d = cache_row_bytes(type, d);
  if (static_cast<int64_t>(cache.shape(first)) == heads && static_cast<int64_t>(cache.shape(first + 2)) == d) return;
  throw std::invalid_argument(std::string(name) + " is [" + std::to_string(cache.shape(first)) + ", " +
                              std::to_string(cache.shape(first + 1)) + ", " + std::to_string(cache.shape(first + 2)) +
                              "]; accepted: [" + std::to_string(heads) + ", capacity, " + std::to_string(d) + "]");
}

class BoundProgram {
 public:
  // The pool is kept alive by nb::keep_alive.
  BoundProgram(ThreadPool& pool, AnyArray arena, int64_t max_tokens, int64_t max_sequences)
      : pool_(pool),
        arena_(checked(arena)),
        program_(pool, static_cast<uint8_t*>(arena.data()), static_cast<int64_t>(arena.size()), max_tokens,
                 max_sequences) {}

  Program& program() { return program_; }
  int threads() const { return pool_.threads(); }

  const PackedMatrix& matrix(const nb::object& w) {
    if (!nb::isinstance<OwnedMatrix>(w)) throw nb::type_error("expected a Matrix");
    const OwnedMatrix& owned = nb::cast<const OwnedMatrix&>(w);
    kept_.push_back(w);
    return owned.view();
  }
  std::vector<PackedMatrix> matrices(const nb::list& list) {
    std::vector<PackedMatrix> out;
    for (nb::handle w : list) out.push_back(matrix(nb::borrow(w)));
    return out;
  }
  CacheView cache(const AnyArray& k, const AnyArray* v, int64_t heads, int64_t d) {
    CacheView view;
    check_shape(k, "k_cache", heads, d);
    view.k = k.data();
    view.type = cache_type(k, "k_cache");
    view.sequences = k.ndim() == 4 ? static_cast<int64_t>(k.shape(0)) : 1;
    view.capacity = static_cast<int64_t>(k.shape(k.ndim() - 2));
    caches_.push_back(k);
    if (v != nullptr) {
      check_shape(*v, "v_cache", heads, d);
      if (v->ndim() != k.ndim() || v->shape(0) != k.shape(0) || v->shape(v->ndim() - 2) != k.shape(k.ndim() - 2) ||
          cache_type(*v, "v_cache") != view.type) {
        throw std::invalid_argument("k_cache and v_cache differ in sequences, capacity or type");
      }
      view.v = v->data();
      caches_.push_back(*v);
    }
    return view;
  }

  void set_parameter(const std::string& name, const std::variant<int64_t, std::string>& value) {
    BlockValues block = program_.parameters();
    std::visit([&](const auto& v) { block.set(parameter_from_name(name), v); }, value);
    program_.set_parameters(block);
  }

  // Of sequences that `where`, int64 [n, 3], tells at each start.
  Launch launch(const AnyReadable& tokens, const AnyReadable& where) {
    check_type<int32_t>(tokens, "tokens", "int32");
    check_layout(tokens, 1, "tokens");
    check_type<int64_t>(where, "where", "int64");
    check_layout(where, 2, "where");
    if (where.shape(1) != 3) throw std::invalid_argument("where has rows of another length; accepted: 3");
    launched_.push_back(tokens);
    launched_.push_back(where);
    return {program_, static_cast<const int32_t*>(tokens.data()), static_cast<int64_t>(tokens.size()),
            static_cast<const int64_t*>(where.data()), static_cast<int64_t>(where.shape(0)), ""};
  }

  nb::object run(const AnyReadable& tokens, const std::variant<int64_t, AnyReadable>& where, bool profile) {
    check_type<int32_t>(tokens, "tokens", "int32");
    check_layout(tokens, 1, "tokens");
    const std::vector<Span> spans = this->spans(where, static_cast<int64_t>(tokens.size()));
    std::vector<double> seconds;
    {
      nb::gil_scoped_release release;
      program_.run({static_cast<const int32_t*>(tokens.data()), static_cast<int64_t>(tokens.size()), spans.data(),
                    static_cast<int64_t>(spans.size())},
                   profile ? &seconds : nullptr);
    }
    return profile ? nb::cast(seconds) : nb::none();
  }

 private:
  static std::vector<Span> spans(const std::variant<int64_t, AnyReadable>& where, int64_t n_tokens) {
    if (const int64_t* position = std::get_if<int64_t>(&where)) return {{0, *position, n_tokens}};
    const AnyReadable& array = std::get<AnyReadable>(where);
    check_type<int64_t>(array, "position", "int64, or a number");
    check_layout(array, 2, "position");
    if (array.shape(1) != 3) throw std::invalid_argument("position has rows of " + std::to_string(array.shape(1)) +
                                                         "; accepted: 3 (sequence, position, tokens)");
    std::vector<Span> out;
    const auto* row = static_cast<const int64_t*>(array.data());
    for (size_t i = 0; i < array.shape(0); ++i, row += 3) out.push_back({row[0], row[1], row[2]});
    return out;
  }
  static const AnyArray& checked(const AnyArray& arena) {
    check_type<uint8_t>(arena, "arena", "uint8");
    check_layout(arena, 1, "arena");
    return arena;
  }

  ThreadPool& pool_;
  AnyArray arena_;
  std::vector<nb::object> kept_;
  std::vector<AnyArray> caches_;
  std::vector<AnyReadable> launched_;  // kept as long as anything may be started
  Program program_;
};

RouterOptions router_options(int64_t top_k, const std::string& scoring, int64_t n_group, int64_t topk_group,
                             bool norm_topk_prob, float routed_scaling, const std::optional<Vector>& bias,
                             const std::optional<Vector>& logit_bias) {
  if (scoring != "softmax" && scoring != "sigmoid") {
    throw std::invalid_argument("unknown scoring '" + scoring + "', accepted: softmax, sigmoid");
  }
  return {top_k,         scoring == "sigmoid", n_group, topk_group, norm_topk_prob, routed_scaling, floats(bias),
          floats(logit_bias)};
}

// [experts, rows], as one run of floats.
using Matrix2d = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::vector<float> floats(const std::optional<Matrix2d>& x) {
  return x.has_value() ? std::vector<float>(x->data(), x->data() + x->size()) : std::vector<float>();
}

}  // namespace

void bind_program(nb::module_& m) {
  using namespace nb::literals;
  using P = BoundProgram;
  nb::class_<Launch>(m, "Launch",
                     "A run that C code starts by calling the function at address `function` with `data`, without "
                     "Python.")
      .def_prop_ro("function", [](Launch&) { return reinterpret_cast<uintptr_t>(&Launch::start); })
      .def_prop_ro("data", [](Launch& l) { return reinterpret_cast<uintptr_t>(&l); })
      .def_prop_ro(
          "error", [](Launch& l) { return l.error; }, "What was wrong with the last run; empty: nothing.");
  nb::class_<P>(m, "Program",
                "A run of operations, recorded once and replayed in one parallel region.\n\n"
                "Values are row-major [rows, width] of float32 (int32 for expert ids) at byte offsets into `arena`.\n"
                "Each operation appends a step and returns its index; all raise ValueError for what does not fit.")
      .def(nb::init<ThreadPool&, AnyArray, int64_t, int64_t>(), nb::keep_alive<1, 2>(), "pool"_a, "arena"_a,
           "max_tokens"_a, "max_sequences"_a = 1,
           "arena: uint8[:], writable, 64-byte aligned. max_sequences: that one run has tokens of, at the most.")
      .def_prop_ro("n_steps", [](P& p) { return p.program().n_steps(); })
      .def_prop_ro(
          "n_barriers", [](P& p) { return p.program().n_barriers(); }, "Barriers in one run.")
      .def_prop_ro(
          "step_threads", [](P& p) { return p.program().step_threads(); },
          "By step: threads that share it; 1 where every thread of a run computes it for itself.")
      .def_prop_ro(
          "scratch_bytes", [](P& p) { return p.program().scratch_bytes(); }, "Of the steps, outside the arena.")
      .def_prop_ro(
          "threads", [](P& p) { return p.threads(); }, "Threads of the pool.")
      .def_prop_rw(
          "activation_planes", [](P& p) { return p.program().parameters()[Parameter::activation_planes]; },
          [](P& p, int64_t planes) { p.set_parameter("activation_planes", planes); },
          "Planes of int8 (1 or 2) that the matrices recorded from now on round their activations to.")
      .def("set_parameter", &P::set_parameter, "name"_a, "value"_a,
           "Sets a kernel parameter (see `block_parameters`) of the steps recorded from now on, a choice by its name\n"
           "or its number. Raises ValueError for an unknown one and for a value that is not accepted.")
      .def("reset_parameters", [](P& p) { p.program().set_parameters({}); }, "All parameters back to their defaults.")
      .def_prop_ro("max_tokens", [](P& p) { return p.program().max_tokens(); })
      .def(
          "embedding",
          [](P& p, const std::string& i, nb::object w, int64_t y, int threads) {
            return p.program().embedding(isa(i), p.matrix(w), y, threads);
          },
          "isa"_a, "w"_a, "y"_a, "threads"_a = 0)
      .def(
          "rms_norm",
          [](P& p, const std::string& i, int64_t x, const Vector& weight, int64_t d, int64_t rows, float eps, int64_t y,
             bool one_row, int64_t row_width, int threads) {
            return p.program().rms_norm(isa(i), x, floats(weight), d, rows, eps, y, one_row, row_width, threads);
          },
          "isa"_a, "x"_a, "weight"_a, "d"_a, "rows"_a, "eps"_a, "y"_a, "one_row"_a = false, "row_width"_a = 0,
          "threads"_a = 0,
          "row_width: floats from one vector to the next (0: d); those behind the first d pass through.")
      .def(
          "linear",
          [](P& p, const std::string& i, nb::object w, int64_t x, int64_t y, const std::optional<Vector>& bias,
             bool one_row,
             int threads) { return p.program().linear(isa(i), p.matrix(w), x, y, floats(bias), one_row, threads); },
          "isa"_a, "w"_a, "x"_a, "y"_a, "bias"_a.none() = nb::none(), "one_row"_a = false, "threads"_a = 0)
      .def(
          "rope",
          [](P& p, const std::string& i, int64_t x, int64_t y, int64_t heads, int64_t head_dim, int64_t d, bool neox,
             const Vector& inv_freq, float attn_factor, bool first, int threads) {
            return p.program().rope(isa(i), x, y, heads, head_dim, d, neox, floats(inv_freq), attn_factor, first,
                                    threads);
          },
          "isa"_a, "x"_a, "y"_a, "heads"_a, "head_dim"_a, "d"_a, "neox"_a, "inv_freq"_a, "attn_factor"_a = 1.0f,
          "first"_a = false, "threads"_a = 0)
      .def(
          "attention",
          [](P& p, const std::string& i, int64_t q, int64_t k, int64_t v, int64_t y, int64_t heads, int64_t kv_heads,
             int64_t d, const AnyArray& k_cache, const AnyArray& v_cache, float scale, int64_t window,
             const std::optional<Vector>& sinks, int threads) {
            return p.program().attention(isa(i), q, k, v, y, heads, kv_heads, d,
                                         p.cache(k_cache, &v_cache, kv_heads, d), scale, window, floats(sinks),
                                         threads);
          },
          "isa"_a, "q"_a, "k"_a, "v"_a, "y"_a, "heads"_a, "kv_heads"_a, "d"_a, "k_cache"_a, "v_cache"_a, "scale"_a,
          "window"_a = 0, "sinks"_a.none() = nb::none(), "threads"_a = 0,
          "Appends k and v to the caches [sequences, kv_heads, capacity, d] (or of one sequence without the first), then\n"
          "attends causally. Caches are float32, float16, uint16 (bf16 bits) or, with rows of d / 32 * 34, uint8 (q8_0\n"
          "blocks). Position p is in slot p % capacity.\n"
          "window: a row at position p sees positions [max(0, p - window + 1), p]; 0: all from 0 on.\n"
          "sinks: one score a head (float32[heads]) that joins the softmax of each of its rows, with a value of 0.")
      .def(
          "mla_attention",
          [](P& p, const std::string& i, int64_t q, int64_t latent, int64_t y, int64_t heads, int64_t kv_lora,
             int64_t rope, const AnyArray& cache, float scale, int64_t window, int threads) {
            return p.program().mla_attention(isa(i), q, latent, y, heads, kv_lora, rope,
                                             p.cache(cache, nullptr, 1, kv_lora + rope), scale, window, threads);
          },
          "isa"_a, "q"_a, "latent"_a, "y"_a, "heads"_a, "kv_lora"_a, "rope"_a, "cache"_a, "scale"_a, "window"_a = 0,
          "threads"_a = 0)
      .def(
          "mla_decompressed",
          [](P& p, const std::string& i, const nb::list& k, const nb::list& v, int64_t q, int64_t latent, int64_t y,
             int64_t kv_lora, int64_t rope, const AnyArray& cache, float scale, int64_t window, int threads) {
            return p.program().mla_decompressed(isa(i), {p.matrices(k), p.matrices(v)}, q, latent, y, kv_lora, rope,
                                                p.cache(cache, nullptr, 1, kv_lora + rope), scale, window,
                                                threads);
          },
          "isa"_a, "k"_a, "v"_a, "q"_a, "latent"_a, "y"_a, "kv_lora"_a, "rope"_a, "cache"_a, "scale"_a, "window"_a = 0,
          "threads"_a = 0,
          "As mla_attention for queries [heads * (nope + rope)] and outputs [heads * v]: k and v hold one matrix per head,\n"
          "[nope, kv_lora] and [v, kv_lora], that multiply latents out to keys and values.")
      .def(
          "silu_mul",
          [](P& p, const std::string& i, int64_t gate, int64_t up, int64_t y, int64_t n, int threads) {
            return p.program().silu_mul(isa(i), gate, up, y, n, threads);
          },
          "isa"_a, "gate"_a, "up"_a, "y"_a, "n"_a, "threads"_a = 0)
      .def(
          "add",
          [](P& p, const std::string& i, int64_t a, int64_t b, int64_t y, int64_t d, int threads) {
            return p.program().add(isa(i), a, b, y, d, threads);
          },
          "isa"_a, "a"_a, "b"_a, "y"_a, "d"_a, "threads"_a = 0)
      .def(
          "gated_add",
          [](P& p, const std::string& i, int64_t a, int64_t b, int64_t h, const Vector& weight, int64_t y, int64_t d,
             int threads) { return p.program().gated_add(isa(i), a, b, h, floats(weight), y, d, threads); },
          "isa"_a, "a"_a, "b"_a, "h"_a, "weight"_a, "y"_a, "d"_a, "threads"_a = 0,
          "y = a + sigmoid(h . weight) * b, row by row.")
      .def(
          "take_last",
          [](P& p, const std::string& i, int64_t x, int64_t y, int64_t d, int threads) {
            return p.program().take_last(isa(i), x, y, d, threads);
          },
          "isa"_a, "x"_a, "y"_a, "d"_a, "threads"_a = 0)
      .def(
          "head_linear",
          [](P& p, const std::string& i, const nb::list& w, int64_t x, int64_t y, int64_t tail, int threads) {
            return p.program().head_linear(isa(i), p.matrices(w), x, y, tail, threads);
          },
          "isa"_a, "w"_a, "x"_a, "y"_a, "tail"_a = 0, "threads"_a = 0,
          "One matrix per head; the last `tail` floats of each head's vector pass through behind its result.")
      .def(
          "moe_router",
          [](P& p, const std::string& i, nb::object w, int64_t x, int64_t ids, int64_t weights, int64_t top_k,
             const std::string& scoring, int64_t n_group, int64_t topk_group, bool norm_topk_prob, float routed_scaling,
             const std::optional<Vector>& bias, const std::optional<Vector>& logit_bias, int threads) {
            return p.program().moe_router(
                isa(i), p.matrix(w), x, ids, weights,
                router_options(top_k, scoring, n_group, topk_group, norm_topk_prob, routed_scaling, bias, logit_bias),
                threads);
          },
          "isa"_a, "w"_a, "x"_a, "ids"_a, "weights"_a, "top_k"_a, "scoring"_a, "n_group"_a = 1, "topk_group"_a = 1,
          "norm_topk_prob"_a = false, "routed_scaling"_a = 1.0f, "bias"_a.none() = nb::none(),
          "logit_bias"_a.none() = nb::none(), "threads"_a = 0,
          "bias moves the choice of experts only, logit_bias is a part of their logits.")
      .def(
          "moe_experts",
          [](P& p, const std::string& i, const nb::list& gate, const nb::list& up, const nb::list& down, int64_t x,
             int64_t ids, int64_t weights, int64_t y, int64_t top_k, const std::optional<Matrix2d>& gate_bias,
             const std::optional<Matrix2d>& up_bias, const std::optional<Matrix2d>& down_bias, bool clamped,
             float alpha, float limit, int threads) {
            return p.program().moe_experts(
                isa(i), p.matrices(gate), p.matrices(up), p.matrices(down), x, ids, weights, y, top_k,
                {floats(gate_bias), floats(up_bias), floats(down_bias), clamped, alpha, limit}, threads);
          },
          "isa"_a, "gate"_a, "up"_a, "down"_a, "x"_a, "ids"_a, "weights"_a, "y"_a, "top_k"_a,
          "gate_bias"_a.none() = nb::none(), "up_bias"_a.none() = nb::none(), "down_bias"_a.none() = nb::none(),
          "clamped"_a = false, "alpha"_a = 1.0f, "limit"_a = 0.0f, "threads"_a = 0,
          "Biases are [experts, rows of the matrix]. Experts compute down(silu(gate) * up), or, clamped,\n"
          "down(g * sigmoid(alpha * g) * (u + 1)) with g = gate, at most limit, and u = up, within +-limit.")
      .def("launch", &P::launch, nb::keep_alive<0, 1>(), "tokens"_a, "where"_a,
           "A run for C code to start, of the tokens (int32[:]) and spans (int64[:, 3]) that the arrays hold then.")
      .def("run", &P::run, "tokens"_a, "position"_a, "profile"_a = false,
           "Replays all steps for `tokens` (int32[:]), the first of which has `position` tokens before it: a number,\n"
           "for sequence 0, or int64[:, 3] with (sequence, position, tokens) of each sequence, in the tokens' order.\n"
           "profile=True returns the seconds of each step, measured between barriers around it. Raises ValueError,\n"
           "before anything is touched, when the tokens do not fit.");
}

}  // namespace kbench
