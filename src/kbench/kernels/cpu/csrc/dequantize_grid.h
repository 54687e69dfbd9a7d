// Dequantisation of the formats that store indices into a grid: see dequantize.h.
#pragma once
#include <cstdint>

namespace kbench {

void dequantize_iq2_xxs(const uint8_t* block, float* out);
void dequantize_iq2_xs(const uint8_t* block, float* out);
void dequantize_iq2_s(const uint8_t* block, float* out);
void dequantize_iq3_xxs(const uint8_t* block, float* out);
void dequantize_iq3_s(const uint8_t* block, float* out);
void dequantize_iq1_s(const uint8_t* block, float* out);
void dequantize_iq1_m(const uint8_t* block, float* out);

}  // namespace kbench
