// What this machine can do at best: the ceilings that measured kernels are compared with.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "isa.h"
#include "pool.h"

namespace kbench {

// Bytes per second read by all threads of the pool from a buffer of n_bytes (huge pages where the system has them):
// the best of the passes that fit into `seconds`. Throws std::invalid_argument for less than a page a thread or more
// than is sane.
double read_bandwidth(ThreadPool& pool, int64_t n_bytes, double seconds);
// Of each of those passes, in their order. Their best is what the memory can give; work beside which other machines'
// work comes and goes is compared with what it gave in the meantime, which is their mean.
std::vector<double> read_rates(ThreadPool& pool, int64_t n_bytes, double seconds);

// Operations per second, a multiply-add counting two, of an unrolled loop on registers alone. kind: "int8", "f32",
// "bf16". Throws std::invalid_argument for an unknown kind or one that `isa` has no instructions for.
double arithmetic_peak(ThreadPool& pool, Isa isa, const std::string& kind, double seconds);

}  // namespace kbench
