// Converts a Parquet file to lines of JSON, one object per row.
#pragma once

#include "data/byte_source.h"

namespace specdec::data {

// `stored` gives the bytes of the same file, for its digest. A child process reads the file; it may take 1 GiB for the
// pages of one batch of rows (at most 1024, about 32 MiB by the file's own figures) and 60 s of CPU time until the next
// rows. read() throws Error(kData) with the reason if the file is damaged or needs more, and Error(kNetwork) after a
// stop request. The first read() forks.
std::unique_ptr<ByteSource> parquet_bytes(const std::string& file, std::unique_ptr<ByteSource> stored);

}  // namespace specdec::data
