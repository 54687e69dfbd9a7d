#include "ops.h"

namespace kbench {
namespace {

void fill(OpTable& table, Isa isa) {
  if (isa != Isa::scalar) fill(table, isa_parent(isa));
  switch (isa) {
    case Isa::scalar:
      fill_op_table_scalar(table);
      fill_op_table_scalar_attention(table);
      fill_op_table_scalar_cache(table);
      break;
#if defined(__x86_64__)
    case Isa::avx2:
      fill_op_table_avx2(table);
      fill_op_table_avx2_attention(table);
      fill_op_table_avx2_cache(table);
      break;
    case Isa::avx512: fill_op_table_avx512_attention(table); break;
#endif
    default: break;
  }
}

}  // namespace

const OpTable& op_table(Isa isa) {
  // Made when first asked for, and only of ISAs that can run: the code that fills a table is compiled with its ISA's
  // flags.
  static const struct Tables {
    OpTable of[kIsaCount];
    Tables() {
      for (int i = 0; i < kIsaCount; ++i) {
        if (*isa_missing(static_cast<Isa>(i)) == '\0') fill(of[i], static_cast<Isa>(i));
      }
    }
  } tables;
  return tables.of[static_cast<int>(isa)];
}

}  // namespace kbench
