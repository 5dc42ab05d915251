// The one error type of specdec: named after who must act, with a context chain. Messages say what was found, what was
// expected, where (file, path, key) and what to do. Libraries throw it and never print, abort or exit.
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

  // A copy whose message is "<where>: <message>"; the kind stays.
  Error in(const std::string& where) const { return Error(kind_, where + ": " + what()); }

 private:
  ErrorKind kind_;
};

// Exit code of the contract for an error of this kind: 2, 2, 7, 7, 74, 75, 8, 1.
int exit_code(ErrorKind kind);

// Runs f(); an Error that leaves it gets `where` in front of its message.
template <class F>
decltype(auto) with_context(const std::string& where, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& e) {
    throw e.in(where);
  }
}

}  // namespace specdec
