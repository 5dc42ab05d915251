#include "data/select/scratch_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace specdec::data {

ScratchFile::ScratchFile(const std::filesystem::path& directory) {
  std::string name = (directory / "scratch-XXXXXX").string();
  fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0)
    throw Error(ErrorKind::kIo, directory.string() + ": cannot make a temporary file: " + std::strerror(errno));
  if (::unlink(name.c_str()) != 0) {  // a file that keeps its name would be published with the directory
    const int code = errno;
    ::close(fd_);
    throw Error(ErrorKind::kIo, name + ": cannot be removed: " + std::strerror(code));
  }
}

ScratchFile::~ScratchFile() { ::close(fd_); }

uint64_t ScratchFile::append(std::string_view bytes) {
  const uint64_t begin = size_;
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Error(ErrorKind::kIo, std::string("temporary file: ") + std::strerror(n < 0 ? errno : ENOSPC));
    bytes.remove_prefix(static_cast<size_t>(n));
    size_ += static_cast<uint64_t>(n);
  }
  return begin;
}

void ScratchFile::read(uint64_t offset, std::span<char> out) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw Error(ErrorKind::kIo,
                  std::string("temporary file: ") + (n < 0 ? std::strerror(errno) : "shorter than what was written"));
    out = out.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

}  // namespace specdec::data
