// Which instruction sets this build knows, and which of them this CPU and operating system can run.
#pragma once
#include "matmul_table.h"

namespace kbench {

enum class Isa : int { scalar, avx2, avx512_vnni, kCount };
constexpr int kIsaCount = static_cast<int>(Isa::kCount);

const char* isa_name(Isa isa);
// Empty when runnable, else what is missing, e.g. "the CPU lacks avx512_vnni".
const char* isa_missing(Isa isa);
// Throws std::invalid_argument for an unknown name or an ISA that cannot run here.
Isa isa_from_name(const char* name);
const MatmulTable& matmul_table(Isa isa);

}  // namespace kbench
