// What of the kernels can be chosen: a default, the values that are accepted, those worth trying, and why. Rules, suites
// and tuners read this one declaration; a step reads its values when it is recorded.
//
// A new parameter is a name in `Parameter`, an entry in block_parameters.cpp, and `block_[Parameter::...]` where a step
// is recorded.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "isa.h"

namespace kbench {

enum class Parameter : int {
  activation_planes, layout, panel_tokens, k_block, token_tile, chunk_bytes, prefetch_bytes, partition, kCount
};
constexpr int kParameterCount = static_cast<int>(Parameter::kCount);

// An operation whose parameters are asked for, in Python's words.
struct BlockUse {
  std::string op;
  std::string format;  // of its weights; empty: it has none
  int64_t tokens = 0;  // 0: any number
};

struct BlockParameter {
  const char* name;
  const char* unit;  // what the number counts
  int64_t default_value;
  int64_t lowest, highest;
  int64_t multiple;                  // accepted values are multiples of it
  std::vector<int64_t> candidates;   // what a search tries: ascending, the default among them; alone: nothing to search
  std::vector<const char*> choices;  // of a choice: the name of each value from 0 on; of a number: empty
  const char* reason;                // of the default
  bool (*applies)(Isa isa, const BlockUse& use);  // whether a candidate changes what is done
};

const BlockParameter& block_parameter(Parameter parameter);
// For messages: "1, 2", "static, dynamic", "0 to 4096, a multiple of 64".
std::string accepted_values(const BlockParameter& parameter);
// Throws std::invalid_argument for an unknown name.
Parameter parameter_from_name(const std::string& name);

class BlockValues;
// Those that matrix kernels read.
MatmulParameters matmul_parameters(const BlockValues& block);

// The values of the next steps.
class BlockValues {
 public:
  BlockValues();  // the defaults
  int64_t operator[](Parameter parameter) const { return values_[static_cast<size_t>(parameter)]; }
  // Throws std::invalid_argument, naming what is accepted.
  void set(Parameter parameter, int64_t value);
  // A choice by its name.
  void set(Parameter parameter, const std::string& choice);

 private:
  std::array<int64_t, kParameterCount> values_;
};

}  // namespace kbench
