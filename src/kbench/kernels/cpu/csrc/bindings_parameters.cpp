// Python's view of the kernel parameters: the declaration, as plain data.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "block_parameters.h"

namespace nb = nanobind;

namespace kbench {
namespace {

Isa any_isa(const std::string& name) {
  for (int i = 0; i < kIsaCount; ++i) {
    if (name == isa_name(static_cast<Isa>(i))) return static_cast<Isa>(i);
  }
  return isa_from_name(name.c_str());  // tells what there is
}

nb::list block_parameters(const std::string& isa_text, const std::string& op, const std::string& format,
                          int64_t tokens) {
  const Isa isa = any_isa(isa_text);
  nb::list out;
  for (int i = 0; i < kParameterCount; ++i) {
    const BlockParameter& p = block_parameter(static_cast<Parameter>(i));
    if (!op.empty() && !p.applies(isa, {op, format, tokens})) continue;
    nb::dict fields;
    nb::list candidates, choices;
    for (const int64_t value : p.candidates) candidates.append(value);
    for (const char* name : p.choices) choices.append(name);
    fields["name"] = p.name;
    fields["unit"] = p.unit;
    fields["default"] = p.default_value;
    fields["low"] = p.lowest;
    fields["high"] = p.highest;
    fields["multiple"] = p.multiple;
    fields["candidates"] = candidates;
    fields["choices"] = choices;
    fields["accepted"] = accepted_values(p);
    fields["reason"] = p.reason;
    out.append(fields);
  }
  return out;
}

}  // namespace

void bind_parameters(nb::module_& m) {
  using namespace nb::literals;
  m.def("block_parameters", &block_parameters, "isa"_a, "op"_a = "", "format"_a = "", "tokens"_a = 0,
        "What can be chosen of the kernels of `isa` (whether or not it can run here) for operation `op` on weights of\n"
        "`format` (empty: it has none) and `tokens` tokens (0: any number), one dict a parameter; without an `op`, of\n"
        "all of them.");
}

}  // namespace kbench
