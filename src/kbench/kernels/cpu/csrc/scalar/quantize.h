#pragma once
#include "../matmul_table.h"

namespace kbench {

void quantize_scalar(const Activation& a, int64_t token_begin, int64_t token_end);

}  // namespace kbench
