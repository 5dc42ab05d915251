// The bytes of one source, whatever it is wrapped in: a file, standard input, gzip or zstd; tables as lines of JSON.
// Read once, front to back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace specdec::data {

// The name of standard input.
inline const std::string kStandardInput = "-";

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills the front of `out` and returns how much; 0 only at the end. Throws Error(kData) if the compressed data is
  // damaged or ends too early, Error(kIo) on a read error, Error(kNetwork) if a signal came while standard input was
  // waited for.
  virtual size_t read(std::span<char> out) = 0;
  // A table: the bytes are lines of JSON, one object a row.
  virtual bool is_table() const { return false; }
  // Of the source as it is stored; size 0 = unknown (standard input).
  virtual uint64_t stored_done() const = 0;
  virtual uint64_t stored_size() const = 0;
  // SHA-256 of the source as it is stored; reads what read() has not. Call once, at the end.
  virtual std::string finish_sha256() = 0;
};

// A regular file or kStandardInput. gzip (also of several members) and zstd (of several frames) are told by their first
// bytes, not by the name; so is Parquet (data/parquet_bytes.h), which must be a file; CSV by the name .csv
// (data/csv_bytes.h). Memory: a few buffers, and zstd's window of at most 128 MiB. Throws Error(kData): missing, not a
// regular file (FIFO, directory, device), Parquet on standard input, another file named .parquet.
std::unique_ptr<ByteSource> open_bytes(const std::string& source);

// ".jsonl" of "log.jsonl" and "log.jsonl.gz".
std::string traffic_extension(const std::string& source);

}  // namespace specdec::data
