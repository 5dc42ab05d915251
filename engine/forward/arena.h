#pragma once

#include <cstdint>
#include <memory>
#include <new>

namespace specdec::model {

// A block of memory that is divided into the buffers of a pass. It grows and never shrinks, so later passes of the same
// size allocate nothing.
class Arena {
 public:
  // Takes pairs (float*& pointer, count) and sets each pointer to a buffer of `count` floats. Buffers of earlier calls
  // become invalid.
  template <class... Cut>
  void cut(Cut&&... cuts) {
    size_t total = 0;
    const auto add = [&](float*&, int64_t count) { total += rounded(count); };
    each(add, cuts...);
    if (total > size_) {
      block_.reset(static_cast<float*>(::operator new(total * sizeof(float), kLine)));
      size_ = total;
    }
    float* next = block_.get();
    const auto take = [&](float*& pointer, int64_t count) {
      pointer = next;
      next += rounded(count);
    };
    each(take, cuts...);
  }

 private:
  static constexpr std::align_val_t kLine{64};
  static size_t rounded(int64_t count) { return (static_cast<size_t>(count) + 15) / 16 * 16; }
  template <class F>
  static void each(const F&) {}
  template <class F, class... Rest>
  static void each(const F& f, float*& pointer, int64_t count, Rest&&... rest) {
    f(pointer, count);
    each(f, rest...);
  }
  struct Free {
    void operator()(float* p) const { ::operator delete(p, kLine); }
  };
  std::unique_ptr<float, Free> block_;
  size_t size_ = 0;
};

}  // namespace specdec::model
