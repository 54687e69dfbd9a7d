// Zeroed memory on a cache-line boundary, for scratch that is allocated once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace kbench {

class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t n_bytes)
      : data_(static_cast<uint8_t*>(::operator new(static_cast<size_t>(n_bytes > 0 ? n_bytes : 1), kAlignment))) {
    std::memset(data_.get(), 0, static_cast<size_t>(n_bytes > 0 ? n_bytes : 1));
  }
  uint8_t* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(uint8_t* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<uint8_t, Free> data_;
};

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace kbench
