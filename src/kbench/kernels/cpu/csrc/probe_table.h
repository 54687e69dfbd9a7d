// The probes' inner loops of one ISA. The rules of matmul_table.h hold for the files that fill it.
#pragma once
#include <cstdint>

namespace kbench {

// Does `rounds` rounds of multiply-adds on registers and returns the operations done; *sink keeps the result alive.
using PeakFn = int64_t (*)(int64_t rounds, float* sink);
// Sums n_bytes (a multiple of 256, 64-byte aligned), so that every byte is loaded.
using ReadFn = uint64_t (*)(const uint8_t* data, int64_t n_bytes);

struct ProbeTable {
  PeakFn f32 = nullptr;
  PeakFn int8 = nullptr;
  PeakFn bf16 = nullptr;
  ReadFn read = nullptr;
};

void fill_probe_table_scalar(ProbeTable& table);
void fill_probe_table_avx2(ProbeTable& table);
void fill_probe_table_avx_vnni(ProbeTable& table);
void fill_probe_table_avx512(ProbeTable& table);
void fill_probe_table_avx512_vnni(ProbeTable& table);
void fill_probe_table_avx512_bf16(ProbeTable& table);
void fill_probe_table_amx(ProbeTable& table);

}  // namespace kbench
