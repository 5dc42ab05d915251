// Finds the directory of shared test data (SPECDEC_SHARED, else ../shared beside the source tree).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/source_folder.h"

namespace specdec::test {

inline std::filesystem::path shared_data() {
  const char* given = std::getenv("SPECDEC_SHARED");
  return (given ? std::filesystem::path(given) : std::filesystem::path(source_folder()) / ".." / "shared") / "data";
}

#define SKIP_WITHOUT(path) \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "needs " << (path) << " (set SPECDEC_SHARED)"

}  // namespace specdec::test
