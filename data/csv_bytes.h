// Converts a CSV file (RFC 4180) to lines of JSON, one object per record: the names in the header are the keys, the
// values are strings.
#pragma once

#include "data/byte_source.h"

namespace specdec::data {

// Accepts UTF-8 with or without a byte-order mark, and LF or CR LF at the end of a record. An empty field becomes null;
// an empty line is skipped. Memory: one block and the header (64 KiB). read() throws Error(kData) if the text is no
// such CSV or a record has not as many fields as the header: after a broken quote no later record could be trusted.
std::unique_ptr<ByteSource> csv_bytes(const std::string& name, std::unique_ptr<ByteSource> text);

}  // namespace specdec::data
