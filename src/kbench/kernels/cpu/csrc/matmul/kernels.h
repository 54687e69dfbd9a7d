// The matrix kernels of one ISA. Every source of this folder is compiled once for each ISA, with
//   KBENCH_ISA        its name: the folder of its registers.h, and the namespace of its kernels
//   KBENCH_REGISTERS  the path of that registers.h, in quotes
// and the compiler flags of the ISA (CMakeLists.txt).
#pragma once
#include "../matmul_table.h"

namespace kbench::KBENCH_ISA {

// In the ISA's own folder: what only this one has, such as its way to quantise.
void fill_own(MatmulTable& table);
// Each puts the kernels of its formats into the table.
void fill_floats(MatmulTable& table);
void fill_nibbles(MatmulTable& table);
void fill_five_bits(MatmulTable& table);
void fill_crumbs(MatmulTable& table);
void fill_q6_k(MatmulTable& table);
void fill_q8_0(MatmulTable& table);
void fill_tables(MatmulTable& table);

}  // namespace kbench::KBENCH_ISA
