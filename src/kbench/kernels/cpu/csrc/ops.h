// The table of small operations that an ISA uses.
#pragma once
#include "isa.h"
#include "op_table.h"

namespace kbench {

// Every entry is filled: what an ISA lacks comes from the one it builds on (AVX-512 has an attention of its own; the
// others are bound by latency and by the cache, not by the width of a register). `isa` can run here.
const OpTable& op_table(Isa isa);

}  // namespace kbench
