// Arm NEON with the dot product instructions (Armv8.2 "dotprod").
#pragma once
#if defined(__aarch64__)
#define KBENCH_HAS_REGISTERS
#include "../neon_registers.h"

namespace kbench {
namespace {

struct Registers : NeonRegisters {
  static constexpr bool kPairsRows = false;
};

}  // namespace
}  // namespace kbench
#endif
