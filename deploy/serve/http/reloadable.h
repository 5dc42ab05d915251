// A value that one thread replaces while others use it. A thread that called get() may use the value that it got even
// after set() has replaced it; the old value is destroyed when nobody holds it any more.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

namespace specdec::deploy {

template <class T>
class Reloadable {
 public:
  explicit Reloadable(std::shared_ptr<T> value) : value_(std::move(value)) {}

  std::shared_ptr<T> get() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }
  void set(std::shared_ptr<T> value) {
    const std::lock_guard lock(mutex_);
    value_.swap(value);  // the old value is destroyed after the lock is released
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<T> value_;
};

}  // namespace specdec::deploy
