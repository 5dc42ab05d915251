// The one error type of specdec. The kind says who must act. The message says what was found, what was expected, where
// (file, path, key) and what to do; callers put their context in front of it. Libraries throw Error and never print,
// abort or exit.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace specdec {

enum class ErrorKind { kUsage, kConfig, kData, kModel, kIo, kNetwork, kDevice, kInternal };

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  ErrorKind kind() const { return kind_; }

  // Returns a copy whose message is "<where>: <message>"; the kind stays the same.
  Error in(const std::string& where) const { return Error(kind_, where + ": " + what()); }

 private:
  ErrorKind kind_;
};

// Returns the exit code for this kind (docs/contract.md). In the order of the enum: 2, 2, 7, 7, 74, 75, 8, 1. Code 75
// (kNetwork) means "try again"; a held lock and a requested stop have this kind, too.
int exit_code(ErrorKind kind);

// Runs f(). If it throws an Error, puts `where` in front of its message.
template <class F>
decltype(auto) with_context(const std::string& where, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& e) {
    throw e.in(where);
  }
}

}  // namespace specdec
