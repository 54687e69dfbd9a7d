// Which instruction sets this build knows, and which of them this CPU and operating system can run.
#pragma once
#include "matmul_table.h"

namespace kbench {

// Slowest first, and each after the one it builds on.
enum class Isa : int { scalar, avx2, avx_vnni, avx512, avx512_vnni, avx512_bf16, amx, neon_dotprod, neon_i8mm, kCount };
constexpr int kIsaCount = static_cast<int>(Isa::kCount);

const char* isa_name(Isa isa);
// The one that `isa` builds on: a CPU that runs `isa` runs it too, and its kernels stand where `isa` has none of its own.
// Scalar's is itself.
Isa isa_parent(Isa isa);
// Empty when runnable, else what is missing, e.g. "the CPU lacks avx512_vnni".
const char* isa_missing(Isa isa);
// How the tests prove its kernels.
const char* isa_tests(Isa isa);
// Throws std::invalid_argument for an unknown name or an ISA that cannot run here.
Isa isa_from_name(const char* name);
const MatmulTable& matmul_table(Isa isa);

}  // namespace kbench
