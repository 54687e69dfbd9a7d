// The AMX intrinsics: the compiler's own, or, with KBENCH_SIMDE, the tests' emulation of the tile unit.
#pragma once
#include "../avx512/intrinsics.h"

#if defined(KBENCH_SIMDE)
#include "amx_emulation.h"
#endif
