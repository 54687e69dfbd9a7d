#include "grids.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "dequantize.h"

namespace kbench {
namespace {

// Read by kernels on any thread without a lock, hence the atomic pointers; filled once and never changed or freed.
struct Grids {
  std::mutex mutex;
  std::vector<int8_t> values[kFormatCount];
  std::atomic<const int8_t*> published[kFormatCount] = {};
};

Grids& grids() {
  static Grids* const made = new Grids;  // outlives every thread: no destructor order to think of
  return *made;
}

int place_of(Format format) { return static_cast<int>(format == Format::IQ1_M ? Format::IQ1_S : format); }

}  // namespace

GridShape grid_shape(Format format) {
  switch (format) {
    case Format::IQ2_XXS: return {256, 8};
    case Format::IQ2_XS: return {512, 8};
    case Format::IQ2_S: return {1024, 8};
    case Format::IQ3_XXS: return {256, 4};
    case Format::IQ3_S: return {512, 4};
    case Format::IQ1_S: case Format::IQ1_M: return {2048, 8};
    default: return {};
  }
}

const int8_t* grid(Format format) { return grids().published[place_of(format)].load(std::memory_order_acquire); }

bool has_grid(Format format) { return grid_shape(format).points == 0 || grid(format) != nullptr; }

void set_grid(Format format, const int8_t* values, int64_t count) {
  const GridShape shape = grid_shape(format);
  if (shape.points == 0) throw std::invalid_argument(std::string(format_name(format)) + " has no grid");
  if (count != shape.points * shape.width) {
    throw std::invalid_argument("the grid of " + std::string(format_name(format)) + " has " +
                                std::to_string(shape.points) + " x " + std::to_string(shape.width) + " values, not " +
                                std::to_string(count));
  }
  Grids& all = grids();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::vector<int8_t>& kept = all.values[place_of(format)];
  if (kept.empty()) {
    kept.assign(values, values + count);
    all.published[place_of(format)].store(kept.data(), std::memory_order_release);
  } else if (!std::equal(kept.begin(), kept.end(), values)) {
    throw std::invalid_argument(std::string(format_name(format)) + " has another grid already");
  }
}

}  // namespace kbench
