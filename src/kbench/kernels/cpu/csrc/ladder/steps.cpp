#include "steps.h"

#include <stdexcept>

namespace kbench::ladder {

#if defined(__x86_64__)
#define KBENCH_ON_X86(step) step
#else
#define KBENCH_ON_X86(step) nullptr
#endif

const std::vector<Step>& steps() {
  static const std::vector<Step> all = {
      // name, change, isa, q8_0, aligned, int8, scratch, run
      {"naive", "one input after the other: the inner loop walks down a column", "scalar", false, false, false, false,
       naive},
      {"reordered", "loops swapped: the inner loop walks along a row", "scalar", false, false, false, false, reordered},
      {"several_sums", "16 sums side by side instead of one", "scalar", false, false, false, false, several_sums},
      {"blocked", "blocks of 64 KiB: all tokens use one before the next", "scalar", false, false, false, false,
       blocked},
      {"parallel_static", "all threads, an equal part of the rows each", "scalar", false, false, false, false,
       parallel_static},
      {"parallel_dynamic", "32 rows at a time, whoever is free", "scalar", false, false, false, false,
       parallel_dynamic},
      {"dequantise_then_multiply", "8-bit weights, all turned into floats first", "scalar", true, false, false, true,
       dequantise_then_multiply},
      {"fused", "4 KiB of floats at a time, used while in L1", "scalar", true, false, false, false, fused},
      {"fp16_table", "scales from a table of all float16 values", "scalar", true, false, false, false, fp16_table},
      {"int8_activations", "inputs rounded to int8: integer products", "scalar", true, false, true, false,
       int8_activations},
      {"avx2", "32 bytes to a register, by hand", "avx2", true, false, true, false, KBENCH_ON_X86(avx2)},
      {"aligned", "quants and scales in two aligned streams", "avx2", true, true, true, false, KBENCH_ON_X86(aligned)},
      {"prefetched", "asks memory for what comes 2 KiB later", "avx2", true, true, true, false,
       KBENCH_ON_X86(prefetched)},
      {"vnni", "64 bytes to a register, one instruction for two", "avx512_vnni", true, true, true, false,
       KBENCH_ON_X86(vnni)},
  };
  return all;
}

const Step& step_from_name(const std::string& name) {
  for (const Step& step : steps()) {
    if (name == step.name) return step;
  }
  throw std::invalid_argument("the ladder has no step '" + name + "'");
}

}  // namespace kbench::ladder
