// Steps 10 to 13 from the outside: inputs rounded as in step 9, rows shared out as in step 5, and the rows themselves
// by code for one instruction set. That code is in a folder of its own, whose files alone are compiled with the
// instruction set's flags: avx2/10_avx2.cpp, avx2/11_aligned.cpp, avx2/12_prefetched.cpp, avx512_vnni/13_vnni.cpp.
#include "int8_rows.h"
#include "share.h"
#include "steps.h"

namespace kbench::ladder {

static void run_rows(const Linear& call, ThreadPool& pool, RowsFn rows) {
  const RoundedRows rounded(call);
  const Int8Rows x = rounded.view();
  share_rows(pool, call.n, [&](int64_t begin, int64_t end) { rows(call, x, begin, end); });
}

#if defined(__x86_64__)
void avx2(const Linear& call, ThreadPool& pool) { run_rows(call, pool, rows_avx2); }
void aligned(const Linear& call, ThreadPool& pool) { run_rows(call, pool, rows_aligned); }
void prefetched(const Linear& call, ThreadPool& pool) { run_rows(call, pool, rows_prefetched); }
void vnni(const Linear& call, ThreadPool& pool) { run_rows(call, pool, rows_vnni); }
#endif

}  // namespace kbench::ladder
