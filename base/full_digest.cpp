#include "base/full_digest.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <vector>

#include "base/safetensors.h"
#include "base/sha256.h"

namespace specdec {

std::string full_weights_digest(const std::filesystem::path& directory) {
  constexpr size_t kBlockBytes = 4u << 20;
  const SafetensorsDirectory tensors(directory);
  Sha256 hash;
  std::vector<std::byte> block(kBlockBytes);
  for (const std::string& name : tensors.names()) {
    const TensorEntry& entry = tensors.entry(name);
    const InputFile& file = tensors.file_of(name);
    hash.update(name);
    hash.update(std::string_view("\0", 1));
    for (uint64_t at = 0; at < entry.bytes; at += kBlockBytes) {
      const auto part = std::span(block).first(std::min<uint64_t>(kBlockBytes, entry.bytes - at));
      file.read(entry.offset + at, part);
      hash.update(part);
    }
  }
  return hash.hex();
}

std::string weights_stamp(const std::filesystem::path& directory) {
  const SafetensorsDirectory tensors(directory);
  Sha256 hash;
  for (const fs::path& path : tensors.files()) {
    const std::string file = path.string();
    struct stat s{};
    if (::stat(file.c_str(), &s) != 0) throw Error(ErrorKind::kModel, file + ": " + std::strerror(errno));
    for (const int64_t n :
         {static_cast<int64_t>(s.st_dev), static_cast<int64_t>(s.st_ino), static_cast<int64_t>(s.st_size),
          static_cast<int64_t>(s.st_mtim.tv_sec), static_cast<int64_t>(s.st_mtim.tv_nsec),
          static_cast<int64_t>(s.st_ctim.tv_sec), static_cast<int64_t>(s.st_ctim.tv_nsec)})
      hash.update(std::to_string(n) + " ");
    hash.update(file + "\n");
  }
  return hash.hex();
}

}  // namespace specdec
