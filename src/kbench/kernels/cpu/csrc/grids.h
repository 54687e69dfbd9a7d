// The tables of grid points, one for each format that stores indices into one.
#pragma once
#include <cstdint>

#include "matrix.h"

namespace kbench {

// The values, or nullptr before set_grid(). IQ1_S and IQ1_M read the same table, IQ1_S's.
const int8_t* grid(Format format);

}  // namespace kbench
