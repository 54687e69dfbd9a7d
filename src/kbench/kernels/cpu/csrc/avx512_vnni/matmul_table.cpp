#include "../matmul_table.h"
namespace kbench {
void fill_matmul_table_avx512_vnni(MatmulTable&) {}
}
