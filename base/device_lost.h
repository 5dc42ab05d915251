// The failure after which a process can no longer use its GPU.
#pragma once

#include <string>
#include <utility>

namespace specdec {

// Thrown when a GPU or its driver has failed in a way that lasts until the process ends, such as an illegal access or
// an uncorrectable memory error. Every later call to the GPU fails too, so nothing may go on: the command ends with the
// exit code of ErrorKind::kDevice. For this reason it is no std::exception: code that goes on after the failure of one
// request, draft or sequence catches std::exception and does not see this one.
class DeviceLost {
 public:
  explicit DeviceLost(std::string what) : what_(std::move(what)) {}
  const std::string& what() const { return what_; }

 private:
  std::string what_;
};

}  // namespace specdec
