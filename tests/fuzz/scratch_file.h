// A file in memory for code that reads paths, and a directory in memory for code that reads several files.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace specdec::fuzz {

inline void require(bool ok) {
  if (!ok) std::abort();
}

// One unnamed file; its path is /proc/self/fd/N.
class MemoryFile {
 public:
  const std::string& hold(std::string_view bytes) {
    require(::ftruncate(file_, 0) == 0 &&
            ::pwrite(file_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
    return path_;
  }

 private:
  int file_ = ::memfd_create("fuzz", 0);
  std::string path_ = "/proc/self/fd/" + std::to_string(file_);
};

// A directory below /dev/shm that only this process uses. It is not removed if an input crashes the fuzz target.
class MemoryDirectory {
 public:
  MemoryDirectory() : path_("/dev/shm/specdec-fuzz-" + std::to_string(::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~MemoryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MemoryDirectory(const MemoryDirectory&) = delete;
  MemoryDirectory& operator=(const MemoryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void put(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace specdec::fuzz
