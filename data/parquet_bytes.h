// A Parquet file as lines of JSON, one object a row.
#pragma once

#include "data/byte_source.h"

namespace specdec::data {

// `stored`: the bytes of the same file, for its digest. The file is read in a child process that may take 1 GiB for the
// pages of one batch of rows (at most 1024, some 32 MiB by the file's own figures) and 60 s of CPU for the next rows;
// read() throws Error(kData) with the reason where the file is damaged or asks for more, and Error(kNetwork) after a
// stop request. Forks at the first read().
std::unique_ptr<ByteSource> parquet_bytes(const std::string& file, std::unique_ptr<ByteSource> stored);

}  // namespace specdec::data
