// A value that one thread replaces while other threads use it. A thread may keep using the value that get() returned
// after set() has replaced it; the old value is destroyed when no thread holds it any more.
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
