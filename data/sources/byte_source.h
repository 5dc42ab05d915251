// Reads the bytes of one source once, from front to back: a file or standard input, uncompressed, gzip or zstd. Tables
// (CSV, Parquet) are converted to lines of JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"

namespace specdec::data {

// The source name that means standard input.
inline const std::string kStandardInput = "-";

// Thrown if compressed data end in the middle: the file was cut off, or is still being written. Everything before that
// is valid.
struct CutSource : Error {
  using Error::Error;
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills the front of `out` and returns the number of bytes; 0 only at the end. Throws CutSource if the compressed
  // data end in the middle, another Error(kData) if they are damaged, Error(kIo) on a read error, and Error(kNetwork),
  // the kind that means "try again", if a signal arrived while it waited for standard input.
  virtual size_t read(std::span<char> out) = 0;
  // Returns true for a table; read() then gives lines of JSON, one object per row.
  virtual bool is_table() const { return false; }
  // Return the number of bytes of the stored (compressed) source: read so far, and in total. The total is 0 if it is
  // unknown (standard input).
  virtual uint64_t stored_done() const = 0;
  virtual uint64_t stored_size() const = 0;
  // Reads whatever read() has left and returns the SHA-256 of the stored source. Call once, at the end.
  virtual std::string finish_sha256() = 0;
};

// Opens a regular file or kStandardInput. gzip (also with several members), zstd (also with several frames) and Parquet
// (data/sources/parquet_bytes.h; must be a file) are recognised by their first bytes, CSV by the names .csv and .tsv
// (data/sources/csv_bytes.h). Memory: a few buffers, and zstd's window of at most 128 MiB. Throws Error(kData) if the
// source is missing or not a regular file (FIFO, directory, device), for Parquet on standard input, and for a file
// named .parquet that is not Parquet.
std::unique_ptr<ByteSource> open_bytes(const std::string& source);

// Returns ".jsonl" for "log.jsonl" and for "log.jsonl.gz".
std::string traffic_extension(const std::string& source);

}  // namespace specdec::data
