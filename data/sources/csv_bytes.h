// Converts a CSV file (RFC 4180) to lines of JSON, one object per record: the names in the header are the keys, the
// values are strings.
#pragma once

#include "data/sources/byte_source.h"

namespace specdec::data {

// `separator` stands between the fields; NUL = a comma, or a semicolon if the header has one and no comma.
// Accepts UTF-8 with or without a byte-order mark, and LF or CR LF at the end of a record. An empty field becomes null;
// an empty line is skipped. Memory: one block (64 KiB), the header (at most 64 KiB) and about 1 MiB of lines. read()
// throws Error(kData) at the first record that is not valid CSV or does not have as many fields as the header. It does
// not skip such a record, because after a broken quote no later record can be trusted. Parsers that accept any text,
// such as the crate csv, read a broken quote as text and hold all that follows it as one record.
std::unique_ptr<ByteSource> csv_bytes(const std::string& name, std::unique_ptr<ByteSource> text, char separator);

}  // namespace specdec::data
