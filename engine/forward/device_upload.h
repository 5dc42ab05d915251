// Sends all inputs of several passes to a device in one copy.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace specdec::model {

// Collects arrays and sends them to the device in one copy, from pinned memory if the device is a GPU. Its memory is
// reused for the next upload; the arrays of the last send() must then no longer be in use.
class DeviceUpload {
 public:
  explicit DeviceUpload(at::Device device) : device_(device) {}

  void clear() { used_ = 0, links_.clear(); }
  // Appends an array and returns its offset in bytes, a multiple of 16.
  template <class T>
  size_t add(std::span<const T> values) {
    const size_t place = room(values.size_bytes());
    if (!values.empty()) std::memcpy(host() + place, values.data(), values.size_bytes());
    return place;
  }
  template <class T>
  size_t add(const std::vector<T>& values) {
    return add(std::span<const T>(values));
  }
  // Makes the pointer stored at offset `pointer` of the upload point to the device address of offset `target`. The
  // pointer must have been added before, with any value.
  void link(size_t pointer, size_t target) { links_.emplace_back(pointer, target); }
  // Starts the copy on the device's current stream.
  void send();

  // Returns the device address of the array at offset `place`. Valid from send() until clear().
  template <class T>
  T* at(size_t place) const {
    return reinterpret_cast<T*>(static_cast<char*>(sent_.mutable_data_ptr()) + place);
  }
  // Returns `count` numbers of this dtype at offset `place` as a tensor that shares the device's memory.
  at::Tensor tensor(size_t place, int64_t count, at::ScalarType dtype) const;

 private:
  char* host() { return static_cast<char*>(staged_.mutable_data_ptr()); }
  size_t room(size_t bytes);

  at::Device device_;
  at::Tensor staged_, sent_;  // bytes, on the host and on the device
  size_t used_ = 0;
  std::vector<std::pair<size_t, size_t>> links_;
};

}  // namespace specdec::model
