#include "isa.h"

#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kbench {
namespace {

constexpr const char* kNames[kIsaCount] = {"scalar", "avx2", "avx512_vnni"};

#if defined(__x86_64__)
struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf) {
  Registers r;
  if (__get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d) == 0) return Registers{};
  return r;
}

// The register files that the operating system saves on a context switch (XCR0); 0 where it manages none.
unsigned saved_registers(const Registers& leaf1) {
  if ((leaf1.c >> 27 & 1) == 0) return 0;  // OSXSAVE
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

constexpr unsigned kAvxState = 0x06;     // XMM, YMM
constexpr unsigned kAvx512State = 0xe6;  // and opmask, upper halves of ZMM0-15, ZMM16-31

// The instructions that the flags in CMakeLists.txt let the compiler use, by the names of /proc/cpuinfo.
std::string missing(Isa isa) {
  if (isa == Isa::scalar) return "";
  const Registers leaf1 = cpuid(1), leaf7 = cpuid(7);
  std::string lacks;
  const auto need = [&lacks](unsigned bits, int bit, const char* name) {
    if ((bits >> bit & 1) == 0) lacks += (lacks.empty() ? "the CPU lacks " : ", ") + std::string(name);
  };
  need(leaf1.c, 12, "fma");
  need(leaf1.c, 29, "f16c");
  need(leaf7.b, 5, "avx2");
  need(leaf7.b, 8, "bmi2");
  if (isa == Isa::avx512_vnni) {
    need(leaf7.b, 16, "avx512f");
    need(leaf7.b, 17, "avx512dq");
    need(leaf7.b, 30, "avx512bw");
    need(leaf7.b, 31, "avx512vl");
    need(leaf7.c, 11, "avx512_vnni");
  }
  if (!lacks.empty()) return lacks;
  const unsigned state = isa == Isa::avx2 ? kAvxState : kAvx512State;
  if ((saved_registers(leaf1) & state) != state) return "the operating system does not save the registers of this ISA";
  return "";
}
#else
std::string missing(Isa isa) { return isa == Isa::scalar ? "" : "this CPU is not x86-64"; }
#endif

}  // namespace

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

const char* isa_missing(Isa isa) {
  static const std::string reasons[kIsaCount] = {missing(Isa::scalar), missing(Isa::avx2), missing(Isa::avx512_vnni)};
  return reasons[static_cast<int>(isa)].c_str();
}

static bool runnable(Isa isa) { return *isa_missing(isa) == '\0'; }

Isa isa_from_name(const char* name) {
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (std::string(name) != kNames[i]) continue;
    if (!runnable(isa)) throw std::invalid_argument(std::string(name) + " cannot run here: " + isa_missing(isa));
    return isa;
  }
  std::string accepted;
  for (const char* known : kNames) accepted += (accepted.empty() ? "" : ", ") + std::string(known);
  throw std::invalid_argument("unknown ISA '" + std::string(name) + "', accepted: " + accepted);
}

const MatmulTable& matmul_table(Isa isa) {
  static const struct Tables {
    MatmulTable of[kIsaCount];
    Tables() {
      // Each ISA starts from the one below, so what it does not fill stays the next lower kernel. An ISA that cannot
      // run here must not even fill its table: that code, too, was compiled with the ISA's flags.
      fill_matmul_table_scalar(of[0]);
      of[1] = of[0];
      if (runnable(Isa::avx2)) fill_matmul_table_avx2(of[1]);
      of[2] = of[1];
      if (runnable(Isa::avx512_vnni)) fill_matmul_table_avx512_vnni(of[2]);
    }
  } tables;
  return tables.of[static_cast<int>(isa)];
}

}  // namespace kbench
