#include "block_parameters.h"

#include <algorithm>
#include <stdexcept>

#include "matrix.h"

namespace kbench {
namespace {

bool multiplies(const std::string& op) {
  return op == "linear" || op == "head_linear" || op == "moe_router" || op == "moe_experts";
}

bool quantised_product(Isa, const std::string& op, const std::string& name) {
  Format format;
  return multiplies(op) && find_format(name.c_str(), &format) && quantised(format);
}

bool packed_matrix(Isa, const std::string& op, const std::string& name) {
  Format format;
  return (multiplies(op) || op == "embedding") && find_format(name.c_str(), &format) && has_packed_layout(format);
}

// In the order of `Parameter`.
const std::array<BlockParameter, kParameterCount>& table() {
  static const std::array<BlockParameter, kParameterCount> parameters{{
      {"activation_planes", "int8 planes", 2, 1, 2, 1, {1, 2}, {},
       "Activations meet quantised weights rounded to int8 in blocks of 32. Two planes carry 15 bits and give the float "
       "model's next token at 500 of 500 places; one, as in llama.cpp, is faster where arithmetic is the limit and "
       "changes one token in 30 (SmolLM2-135M, English text).",
       quantised_product},
      {"layout", "way to keep weights", 0, 0, 1, 1, {0}, {"packed", "raw"},
       "Packed weights are read front to back at the speed of memory. Raw ones stay in the file: nothing to do before the "
       "first token and no second copy, but every multiplication packs its tiles first. Same results to the last bit; "
       "chosen by hand, for models that are used once.",
       packed_matrix},
  }};
  return parameters;
}

// So few values are listed one by one.
constexpr int64_t kListed = 4;

[[noreturn]] void refuse(const BlockParameter& p, const std::string& value) {
  throw std::invalid_argument(std::string(p.name) + " is " + value + "; accepted: " + accepted_values(p));
}

}  // namespace

std::string accepted_values(const BlockParameter& p) {
  std::string text;
  const auto add = [&text](const std::string& value) { text += (text.empty() ? "" : ", ") + value; };
  for (const char* name : p.choices) add(name);
  if (!p.choices.empty()) return text;
  if ((p.highest - p.lowest) / p.multiple > kListed) {
    text = std::to_string(p.lowest) + " to " + std::to_string(p.highest);
    return p.multiple == 1 ? text : text + ", a multiple of " + std::to_string(p.multiple);
  }
  for (int64_t value = p.lowest; value <= p.highest; value += p.multiple) add(std::to_string(value));
  return text;
}

const BlockParameter& block_parameter(Parameter parameter) { return table()[static_cast<size_t>(parameter)]; }

Parameter parameter_from_name(const std::string& name) {
  std::string known;
  for (int i = 0; i < kParameterCount; ++i) {
    const BlockParameter& p = table()[static_cast<size_t>(i)];
    if (name == p.name) return static_cast<Parameter>(i);
    known += (known.empty() ? "" : ", ") + std::string(p.name);
  }
  throw std::invalid_argument("unknown kernel parameter '" + name + "', accepted: " + known);
}

BlockValues::BlockValues() {
  std::transform(table().begin(), table().end(), values_.begin(),
                 [](const BlockParameter& p) { return p.default_value; });
}

void BlockValues::set(Parameter parameter, int64_t value) {
  const BlockParameter& p = block_parameter(parameter);
  if (value < p.lowest || value > p.highest || value % p.multiple != 0) refuse(p, std::to_string(value));
  values_[static_cast<size_t>(parameter)] = value;
}

void BlockValues::set(Parameter parameter, const std::string& choice) {
  const BlockParameter& p = block_parameter(parameter);
  const auto found = std::find(p.choices.begin(), p.choices.end(), choice);
  if (found == p.choices.end()) refuse(p, "'" + choice + "'");
  values_[static_cast<size_t>(parameter)] = found - p.choices.begin();
}

}  // namespace kbench
