#include "block_parameters.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "matrix.h"

namespace kbench {
namespace {

bool multiplies(const BlockUse& use) {
  static const char* const kOps[] = {"linear", "head_linear", "mla_decompressed", "moe_router", "moe_experts"};
  return std::find(std::begin(kOps), std::end(kOps), use.op) != std::end(kOps);
}

// With one token there is no choice of kernel, and nothing to cut.
bool several_tokens(const BlockUse& use) { return use.tokens != 1; }

bool quantised_product(Isa, const BlockUse& use) {
  Format format;
  return multiplies(use) && find_format(use.format.c_str(), &format) && quantised(format);
}

// BF16 weights, too, meet rounded activations where an instruction set multiplies that type.
bool rounded_product(Isa isa, const BlockUse& use) {
  const bool multiplies_bf16 = isa == Isa::avx512_bf16 || isa == Isa::amx;
  return quantised_product(isa, use) || (multiplies_bf16 && multiplies(use) && use.format == "BF16");
}

bool packed_matrix(Isa, const BlockUse& use) {
  Format format;
  return (multiplies(use) || use.op == "embedding") && find_format(use.format.c_str(), &format) &&
         has_packed_layout(format);
}

// The scalar kernels are the readable truth: nothing of them can be chosen but what they compute.
bool vector_product(Isa isa, const BlockUse& use) { return isa != Isa::scalar && multiplies(use); }

bool tiled_product(Isa isa, const BlockUse& use) { return vector_product(isa, use) && several_tokens(use); }

bool panel_product(Isa isa, const BlockUse& use) { return tiled_product(isa, use) && quantised_product(isa, use); }

// From so many tokens on, panels are ahead, or the default is to do without them: nothing is left to try.
constexpr int64_t kMostPanelTokens = 32;

// An expert gets a part of the tokens only.
bool either_product(Isa isa, const BlockUse& use) {
  return panel_product(isa, use) && (use.op == "moe_experts" || use.tokens < kMostPanelTokens);
}

constexpr MatmulParameters kDefaults{};

// Latent attention's projections are shared out by heads, each quantised by the thread that multiplies it.
// The products of heads are cut by head and position: their sharing is not a choice.
bool shared_product(Isa, const BlockUse& use) {
  return multiplies(use) && use.op != "head_linear" && use.op != "mla_decompressed";
}

// In the order of `Parameter`.
const std::array<BlockParameter, kParameterCount>& table() {
  static const std::array<BlockParameter, kParameterCount> parameters{{
      {"activation_planes", "int8 planes", 2, 1, 2, 1, {1, 2}, {},
       "Activations meet quantised weights rounded in blocks of 32: with 2, to two int8 planes or one int16, 14 to 15 "
       "bits, which give the float model's next token at 500 of 500 places; with 1, to one int8 as in llama.cpp, which "
       "is faster where arithmetic is the limit and changes one token in 30 (SmolLM2-135M, English text). BF16 "
       "weights, on avx512_bf16 and amx only: with 1, activations of many tokens are rounded to bfloat16; with 2, amx "
       "rounds them to two of those, 16 bits.",
       rounded_product},
      {"layout", "way to keep weights", 0, 0, 1, 1, {0}, {"packed", "raw"},
       "Packed weights are read front to back at the speed of memory. Raw ones stay in the file: nothing to do before the "
       "first token and no second copy, but every multiplication packs its tiles first. Same results to the last bit; "
       "chosen by hand, for models that are used once.",
       packed_matrix},
      {"panel_tokens", "tokens", kDefaults.panel_tokens, 0, kManyTokens, 1, {0, 2, 4, 8, 16, kMostPanelTokens}, {},
       "From so many tokens on, weights are unpacked into a panel in cache instead of being multiplied straight from "
       "the packed lines. 0: a number of each storage type and instruction set, on avx2 where the two kernels were measured "
       "equally fast; for the others it is an estimate, 8 to 16, until one is measured.",
       either_product},
      {"k_block", "columns", kDefaults.k_block, 256, 1024, 256, {256, 512, 768, 1024}, {},
       "A panel of 512 columns and 16 rows of int16 takes 16 KiB: half of a first-level cache of 32 KiB, the other "
       "half is for activations and sums. AVX-512 takes twice the rows and half of the columns.",
       panel_product},
      {"token_tile", "activation rows", kDefaults.token_tile, 0, 64, 1, {0, 2, 3, 4, 6, 8}, {},
       "Rows that are multiplied at a time, each plane of a token being one; 0: as many as the registers hold the sums "
       "of, so that a weight is loaded as rarely as possible. More than that many are cut to it.",
       tiled_product},
      {"chunk_bytes", "bytes", kDefaults.chunk_bytes, 16 << 10, 512 << 10, 1 << 10,
       {64 << 10, 128 << 10, 256 << 10, 512 << 10}, {},
       "Activations that are multiplied with every tile before the next ones are looked at. They are read once per "
       "tile, front to back, so that a second-level cache of 512 KiB need not hold all of them; the smaller they are, the "
       "more often are the weights read and unpacked. Where fewer than 32 rows fit, columns are multiplied in ranges, "
       "each of which reads and writes the results once more. Zen 3, 256 tokens, against 256 KiB: the same "
       "up to 2048 quantised columns, 2 to 8 % faster from 4096 on; float formats 11 to 30 % faster.",
       tiled_product},
      {"prefetch_bytes", "bytes ahead", kDefaults.prefetch_bytes, 0, 64 << 10, 64, {0, 512, 1024, 2048, 4096, 8192}, {},
       "How far ahead of the weights in use the next ones are asked for. 2 KiB cover 100 ns at 20 GB/s and are a "
       "fraction of L1. Zen 3, one thread, 4- and 6-bit weights: 20 to 40 % faster than 0, which is the speed of plain "
       "reading; 512 and 8192 gain half of it or less.",
       vector_product},
      {"partition", "way of sharing out", 0, 0, 2, 1, {0, 1, 2}, {"static", "dynamic", "stealing"},
       "Who multiplies which rows. Static shares cost as much as each other and keep a thread on its memory node, and SiLU "
       "* up follows them without a barrier. Zen 3, two threads, nobody else at work: stealing decodes as fast and "
       "prefills narrow matrices 12 % slower, dynamic is slower in both. Beside processes that take a core away one run "
       "was 5 to 15 % faster with either and one up to 11 % slower: measure. Same results to the last bit.",
       shared_product},
  }};
  return parameters;
}

// So few values are listed one by one.
constexpr int64_t kListed = 4;

[[noreturn]] void refuse(const BlockParameter& p, const std::string& value) {
  throw std::invalid_argument(std::string(p.name) + " is " + value + "; accepted: " + accepted_values(p));
}

}  // namespace

std::string accepted_values(const BlockParameter& p) {
  std::string text;
  const auto add = [&text](const std::string& value) { text += (text.empty() ? "" : ", ") + value; };
  for (const char* name : p.choices) add(name);
  if (!p.choices.empty()) return text;
  if ((p.highest - p.lowest) / p.multiple > kListed) {
    text = std::to_string(p.lowest) + " to " + std::to_string(p.highest);
    return p.multiple == 1 ? text : text + ", a multiple of " + std::to_string(p.multiple);
  }
  for (int64_t value = p.lowest; value <= p.highest; value += p.multiple) add(std::to_string(value));
  return text;
}

const BlockParameter& block_parameter(Parameter parameter) { return table()[static_cast<size_t>(parameter)]; }

Parameter parameter_from_name(const std::string& name) {
  std::string known;
  for (int i = 0; i < kParameterCount; ++i) {
    const BlockParameter& p = table()[static_cast<size_t>(i)];
    if (name == p.name) return static_cast<Parameter>(i);
    known += (known.empty() ? "" : ", ") + std::string(p.name);
  }
  throw std::invalid_argument("unknown kernel parameter '" + name + "', accepted: " + known);
}

BlockValues::BlockValues() {
  std::transform(table().begin(), table().end(), values_.begin(),
                 [](const BlockParameter& p) { return p.default_value; });
}

void BlockValues::set(Parameter parameter, int64_t value) {
  const BlockParameter& p = block_parameter(parameter);
  if (value < p.lowest || value > p.highest || value % p.multiple != 0) refuse(p, std::to_string(value));
  values_[static_cast<size_t>(parameter)] = value;
}

void BlockValues::set(Parameter parameter, const std::string& choice) {
  const BlockParameter& p = block_parameter(parameter);
  const auto found = std::find(p.choices.begin(), p.choices.end(), choice);
  if (found == p.choices.end()) refuse(p, "'" + choice + "'");
  values_[static_cast<size_t>(parameter)] = found - p.choices.begin();
}

MatmulParameters matmul_parameters(const BlockValues& block) {
  MatmulParameters p;
  p.planes = static_cast<int>(block[Parameter::activation_planes]);
  p.panel_tokens = block[Parameter::panel_tokens];
  p.k_block = block[Parameter::k_block];
  p.token_tile = block[Parameter::token_tile];
  p.chunk_bytes = block[Parameter::chunk_bytes];
  p.prefetch_bytes = block[Parameter::prefetch_bytes];
  return p;
}

}  // namespace kbench
