// Full unrolling of a short loop of constant length, so that the arrays it indexes become registers.
#pragma once

#if defined(__clang__)
#define KBENCH_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KBENCH_UNROLL _Pragma("GCC unroll 16")
#endif
