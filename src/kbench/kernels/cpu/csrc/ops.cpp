#include "ops.h"

namespace kbench {
namespace {

OpTable make_table(Isa isa) {
  OpTable table;
  fill_op_table_scalar(table);
  fill_op_table_scalar_attention(table);
#if defined(__x86_64__)
  if (isa >= Isa::avx2) {
    fill_op_table_avx2(table);
    fill_op_table_avx2_attention(table);
  }
  if (isa >= Isa::avx512_vnni) fill_op_table_avx512_vnni_attention(table);
#endif
  (void)isa;
  return table;
}

// Made when first asked for: the code that fills a table is compiled with its ISA's flags.
template <Isa kIsa>
const OpTable& table_of() {
  static const OpTable table = make_table(kIsa);
  return table;
}

}  // namespace

const OpTable& op_table(Isa isa) {
  switch (isa) {
    case Isa::avx2: return table_of<Isa::avx2>();
    case Isa::avx512_vnni: return table_of<Isa::avx512_vnni>();
    default: return table_of<Isa::scalar>();
  }
}

}  // namespace kbench
