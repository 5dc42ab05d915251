// Reads variables of the environment.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <string>

namespace specdec {

// Returns the value of the first variable of `names` that is set and not empty, or `otherwise`.
inline std::string environment(std::initializer_list<const char*> names, const std::string& otherwise = "") {
  for (const char* name : names)
    if (const char* value = std::getenv(name); value && *value) return value;
  return otherwise;
}

}  // namespace specdec
