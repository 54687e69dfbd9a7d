// Step 4, cache-blocked: with several tokens step 3 reads the whole matrix from memory once per token. Cut it into
// blocks that fit a cache, and let all tokens use a block before the next one is fetched: the matrix comes from memory
// once. See blocked.h.
//
//          columns ->
//   rows   +------+------+------+
//     |    | 1    | 2    | 3    |      block 1: all tokens, block 2: all tokens, ...
//     v    +------+------+------+
//          | 4    | 5    | 6    |
//
// With one token nothing is used twice and nothing is gained.
#include "blocked.h"
#include "steps.h"

namespace kbench::ladder {

void blocked(const Linear& call, ThreadPool&) {
  blocked_rows(call, static_cast<const float*>(call.w), 0, call.n);
}

}  // namespace kbench::ladder
