// Tier 4 of the ladder that base/fingerprint.h begins: every byte of every weight. It costs as long as reading the
// model from disk takes.
#pragma once

#include <filesystem>
#include <string>

namespace specdec {

// SHA-256 over, for every tensor by sorted name: name, NUL, all its bytes. Independent of sharding. Throws
// Error(kModel), Error(kIo).
std::string full_weights_digest(const std::filesystem::path& directory);

// Digest of the shards' device, inode, size, mtime and ctime in nanoseconds: where it is the same, nobody wrote to them
// in between. Throws Error(kModel).
std::string weights_stamp(const std::filesystem::path& directory);

}  // namespace specdec
