#include "ops.h"

namespace kbench {

const OpTable& op_table(Isa isa) {
  static const OpTable scalar = [] {
    OpTable table;
    fill_op_table_scalar(table);
    fill_op_table_scalar_attention(table);
    return table;
  }();
#if defined(__x86_64__)
  static const OpTable avx2 = [] {
    OpTable table = scalar;
    fill_op_table_avx2(table);
    fill_op_table_avx2_attention(table);
    return table;
  }();
  if (isa != Isa::scalar) return avx2;
#endif
  (void)isa;
  return scalar;
}

}  // namespace kbench
