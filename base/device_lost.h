// The failure after which a process can no longer run its model.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"

namespace specdec {

// Thrown when a GPU or its driver has failed in a way that lasts until the process ends, such as an illegal access or
// an uncorrectable memory error, or when another process that holds a part of the model is gone. Every later pass fails
// too, so nothing may go on: the command ends with the exit code of kind(). For this reason it is no std::exception:
// code that goes on after the failure of one request, draft or sequence catches std::exception and does not see this
// one.
class DeviceLost {
 public:
  explicit DeviceLost(std::string what, ErrorKind kind = ErrorKind::kDevice) : what_(std::move(what)), kind_(kind) {}
  const std::string& what() const { return what_; }
  ErrorKind kind() const { return kind_; }

 private:
  std::string what_;
  ErrorKind kind_;
};

}  // namespace specdec
