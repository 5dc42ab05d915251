// Tier 4 of the fingerprint (base/fingerprint.h has tiers 1 to 3): a digest of every byte of every weight. Computing
// the digest takes as long as reading the model from disk.
#pragma once

#include <filesystem>
#include <string>

namespace specdec {

// Returns the SHA-256 of the name, NUL and all bytes of every tensor, sorted by name. Does not depend on sharding.
// Throws Error(kModel), Error(kIo).
std::string full_weights_digest(const std::filesystem::path& directory);

// Returns a digest of the shards' paths and their device, inode, size, mtime and ctime in nanoseconds. If two calls
// return the same digest, nobody wrote to the shards in between. Throws Error(kModel).
std::string weights_stamp(const std::filesystem::path& directory);

}  // namespace specdec
