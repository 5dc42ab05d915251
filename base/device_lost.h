// The failure after which a process can no longer run its model.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"

namespace specdec {

// Thrown when a GPU or its driver has failed in a way that lasts until the process ends, such as an illegal access or
// an uncorrectable memory error, or when another process that holds a part of the model is gone. Every later pass would
// fail too, so the command ends with the exit code of kind(). DeviceLost does not derive from std::exception, so code
// that catches std::exception to continue after the failure of one request, draft or sequence does not catch it.
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
