// Converts a Parquet file to lines of JSON, one object per row.
#pragma once

#include "data/sources/byte_source.h"

namespace specdec::data {

// Reads the Parquet file in a child process, which the first read() forks; `stored` gives the bytes of the same file
// for its digest. For each batch of rows, the child may take 1 GiB of memory and 60 s of CPU time. A batch has at most
// 1024 rows, and at most about 32 MiB by the file's metadata. read() throws Error(kData) with the reason if the file
// is damaged or needs more memory or time, and Error(kNetwork), the kind that means "try again", after a stop request.
std::unique_ptr<ByteSource> parquet_bytes(const std::string& file, std::unique_ptr<ByteSource> stored);

}  // namespace specdec::data
