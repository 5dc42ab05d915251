// Keeps bytes on disk while a command runs. The file has no name, so nothing is left when the process is killed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace specdec::data {

class ScratchFile {
 public:
  // Creates the file on the file system of `directory`. Throws Error(kIo).
  explicit ScratchFile(const std::filesystem::path& directory);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  uint64_t append(std::string_view bytes);  // returns their offset; throws Error(kIo), for example if the disk is full
  void read(uint64_t offset, std::span<char> out) const;

 private:
  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace specdec::data
