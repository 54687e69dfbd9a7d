#include "isa.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace kbench {
namespace {

// An ISA's kernels are linked on its own architecture only.
#if defined(__x86_64__)
#define KBENCH_X86(fill) fill
#else
#define KBENCH_X86(fill) nullptr
#endif
#if defined(__aarch64__)
#define KBENCH_ARM(fill) fill
#else
#define KBENCH_ARM(fill) nullptr
#endif

constexpr const char* kEverywhere = "run on every machine";
constexpr const char* kWhereTheCpuHasIt = "run where the CPU has it";
constexpr const char* kOrEmulated = "run where the CPU has it, emulated elsewhere";
constexpr const char* kEmulated = "emulated";
// The tests run these, too, where they can; nobody has seen that yet.
constexpr const char* kNeverOnOne = "emulated; untested on a CPU that has it";

// In the order of `Isa`.
constexpr struct {
  Isa isa;
  const char* name;
  Isa parent;
  void (*fill)(MatmulTable&);
  const char* tests;
} kIsas[] = {
    {Isa::scalar, "scalar", Isa::scalar, fill_matmul_table_scalar, kEverywhere},
    {Isa::avx2, "avx2", Isa::scalar, KBENCH_X86(fill_matmul_table_avx2), kWhereTheCpuHasIt},
    {Isa::avx_vnni, "avx_vnni", Isa::avx2, KBENCH_X86(fill_matmul_table_avx_vnni), kOrEmulated},
    {Isa::avx512, "avx512", Isa::avx2, KBENCH_X86(fill_matmul_table_avx512), kOrEmulated},
    {Isa::avx512_vnni, "avx512_vnni", Isa::avx512, KBENCH_X86(fill_matmul_table_avx512_vnni), kOrEmulated},
    {Isa::avx512_bf16, "avx512_bf16", Isa::avx512_vnni, KBENCH_X86(fill_matmul_table_avx512_bf16), kOrEmulated},
    {Isa::amx, "amx", Isa::avx512_bf16, KBENCH_X86(fill_matmul_table_amx), kNeverOnOne},
    {Isa::neon_dotprod, "neon_dotprod", Isa::scalar, KBENCH_ARM(fill_matmul_table_neon_dotprod), kEmulated},
    {Isa::neon_i8mm, "neon_i8mm", Isa::neon_dotprod, KBENCH_ARM(fill_matmul_table_neon_i8mm), kEmulated},
};

constexpr bool in_order() {
  for (int i = 0; i < kIsaCount; ++i) {
    if (static_cast<int>(kIsas[i].isa) != i || static_cast<int>(kIsas[i].parent) > i) return false;
  }
  return sizeof kIsas / sizeof *kIsas == kIsaCount;
}
static_assert(in_order(), "one row for each ISA, each after the one it builds on");

bool builds_on(Isa isa, Isa base) {
  while (isa != base && isa != Isa::scalar) isa = isa_parent(isa);
  return isa == base;
}

// "the CPU lacks a, b"
class Lacks {
 public:
  void add(const char* name) { text_ += (text_.empty() ? "the CPU lacks " : ", ") + std::string(name); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

#if defined(__x86_64__)
struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d) == 0) return Registers{};
  return r;
}

// The instructions that the flags in CMakeLists.txt let the compiler use, by the names of /proc/cpuinfo.
constexpr struct {
  Isa isa;
  unsigned leaf, subleaf;
  unsigned Registers::*part;
  int bit;
  const char* name;
} kFeatures[] = {
    {Isa::avx2, 1, 0, &Registers::c, 12, "fma"},
    {Isa::avx2, 1, 0, &Registers::c, 29, "f16c"},
    {Isa::avx2, 7, 0, &Registers::b, 5, "avx2"},
    {Isa::avx2, 7, 0, &Registers::b, 8, "bmi2"},
    {Isa::avx_vnni, 7, 1, &Registers::a, 4, "avx_vnni"},
    {Isa::avx512, 7, 0, &Registers::b, 16, "avx512f"},
    {Isa::avx512, 7, 0, &Registers::b, 17, "avx512dq"},
    {Isa::avx512, 7, 0, &Registers::b, 30, "avx512bw"},
    {Isa::avx512, 7, 0, &Registers::b, 31, "avx512vl"},
    {Isa::avx512_vnni, 7, 0, &Registers::c, 11, "avx512_vnni"},
    {Isa::avx512_bf16, 7, 1, &Registers::a, 5, "avx512_bf16"},
    {Isa::amx, 7, 0, &Registers::d, 22, "amx_bf16"},
    {Isa::amx, 7, 0, &Registers::d, 24, "amx_tile"},
    {Isa::amx, 7, 0, &Registers::d, 25, "amx_int8"},
};

// The register files that the operating system saves on a context switch (XCR0); 0 where it manages none.
unsigned saved_registers() {
  if ((cpuid(1, 0).c >> 27 & 1) == 0) return 0;  // OSXSAVE
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

constexpr unsigned kAvxState = 0x06;     // XMM, YMM
constexpr unsigned kAvx512State = 0xe6;  // and opmask, upper halves of ZMM0-15, ZMM16-31
constexpr unsigned kAmxState = 0x600e6;  // and tile configuration, tile data

// Tile registers are 8 KiB of state that Linux saves only for processes that asked for them. Asking once grants them to all
// threads, and can fail: a thread's signal stack may be too small for them.
bool tiles_granted() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

std::string missing(Isa isa) {
  if (isa == Isa::scalar) return "";
  if (!builds_on(isa, Isa::avx2)) return "this CPU is not an Arm64";
  Lacks lacks;
  for (const auto& f : kFeatures) {
    if (builds_on(isa, f.isa) && (cpuid(f.leaf, f.subleaf).*f.part >> f.bit & 1) == 0) lacks.add(f.name);
  }
  if (!lacks.text().empty()) return lacks.text();
  const bool tiles = builds_on(isa, Isa::amx);
  const unsigned state = tiles ? kAmxState : builds_on(isa, Isa::avx512) ? kAvx512State : kAvxState;
  if ((saved_registers() & state) != state) return "the operating system does not save the registers of this ISA";
  if (tiles && !tiles_granted()) return "the operating system does not grant tile registers";
  return "";
}
#elif defined(__aarch64__) && defined(__linux__)
std::string missing(Isa isa) {
  if (isa == Isa::scalar) return "";
  if (builds_on(isa, Isa::avx2)) return "this CPU is not x86-64";
  Lacks lacks;
  if ((getauxval(AT_HWCAP) >> 20 & 1) == 0) lacks.add("asimddp");  // by the names and bits of Linux
  if (builds_on(isa, Isa::neon_i8mm) && (getauxval(AT_HWCAP2) >> 13 & 1) == 0) lacks.add("i8mm");
  return lacks.text();
}
#else
std::string missing(Isa isa) { return isa == Isa::scalar ? "" : "nothing is known about this CPU"; }
#endif

bool runnable(Isa isa) { return *isa_missing(isa) == '\0'; }

}  // namespace

const char* isa_name(Isa isa) { return kIsas[static_cast<int>(isa)].name; }

Isa isa_parent(Isa isa) { return kIsas[static_cast<int>(isa)].parent; }

const char* isa_tests(Isa isa) { return kIsas[static_cast<int>(isa)].tests; }

const char* isa_missing(Isa isa) {
  static const struct Reasons {
    std::string of[kIsaCount];
    Reasons() {
      for (int i = 0; i < kIsaCount; ++i) of[i] = missing(static_cast<Isa>(i));
    }
  } reasons;
  return reasons.of[static_cast<int>(isa)].c_str();
}

Isa isa_from_name(const char* name) {
  std::string accepted;
  for (const auto& row : kIsas) {
    if (std::string(name) != row.name) {
      accepted += (accepted.empty() ? "" : ", ") + std::string(row.name);
      continue;
    }
    if (!runnable(row.isa)) throw std::invalid_argument(std::string(name) + " cannot run here: " + isa_missing(row.isa));
    return row.isa;
  }
  throw std::invalid_argument("unknown ISA '" + std::string(name) + "', accepted: " + accepted);
}

const MatmulTable& matmul_table(Isa isa) {
  static const struct Tables {
    MatmulTable of[kIsaCount];
    Tables() {
      // Each ISA starts from the one it builds on, so what it does not fill stays that one's kernel. An ISA that cannot
      // run here must not even fill its table: that code, too, was compiled with the ISA's flags.
      for (int i = 0; i < kIsaCount; ++i) {
        of[i] = of[static_cast<int>(kIsas[i].parent)];
        if (runnable(kIsas[i].isa) && kIsas[i].fill != nullptr) kIsas[i].fill(of[i]);
        // Tiles of formats without a packed layout are dequantised to F32, see raw_tiles.h.
        MatmulFn* const kernels = of[i].matmul;
        std::fill(kernels + kPackedFormatCount, kernels + kFormatCount, kernels[static_cast<int>(Format::F32)]);
      }
    }
  } tables;
  return tables.of[static_cast<int>(isa)];
}

}  // namespace kbench
