// A run of a program that C code starts by calling function(data): a CUDA stream's host function, which has no Python
// to hold. What the run reads of its step lies in the caller's arrays.
#pragma once
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "program.h"

namespace kbench {

struct Launch {
  Program& program;
  const int32_t* tokens;
  int64_t n_tokens;
  const int64_t* spans;  // [n_spans][3]: sequence, position, tokens
  int64_t n_spans;
  std::string error;  // of the last run; empty: there was none

  // Nothing is thrown into the caller, which is no C++.
  static void start(void* data) noexcept {
    Launch& self = *static_cast<Launch*>(data);
    self.error.clear();
    try {
      std::vector<Span> spans;
      for (int64_t i = 0; i < self.n_spans; ++i) {
        const int64_t* row = self.spans + 3 * i;
        spans.push_back({row[0], row[1], row[2]});
      }
      self.program.run({self.tokens, self.n_tokens, spans.data(), self.n_spans});
    } catch (const std::exception& found) {
      try {
        self.error = found.what();
      } catch (...) {
      }
    }
  }
};

}  // namespace kbench
