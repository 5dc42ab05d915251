// Where the shared test data is (SPECDEC_SHARED, else ../shared beside the source tree), and a temporary directory.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace specdec::test {

inline std::filesystem::path shared_data() {
  const char* given = std::getenv("SPECDEC_SHARED");
  return (given ? std::filesystem::path(given) : std::filesystem::path(SPECDEC_SOURCE_DIR) / ".." / "shared") / "data";
}

#define SKIP_WITHOUT(path) \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "needs " << (path) << " (set SPECDEC_SHARED)"

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "specdec-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace specdec::test
