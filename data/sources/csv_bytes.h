// Converts a CSV file (RFC 4180) to lines of JSON, one object per record: the names in the header are the keys, the
// values are strings.
#pragma once

#include "data/sources/byte_source.h"

namespace specdec::data {

// `separator` stands between the fields; NUL = a comma, or a semicolon if the header has one and no comma. Accepts
// UTF-8 with or without a byte-order mark, and LF or CR LF at the end of a record. An empty field becomes null; an
// empty line is skipped. Memory: one block (64 KiB), the header (at most 64 KiB) and about 1 MiB of lines. read()
// throws Error(kData) at the first record that is not valid CSV or does not have as many fields as the header. Such a
// record is not skipped, because after a missing or extra quote no later record can be trusted. This is why the crate
// csv is not used: it accepts such a quote and reads all following lines as one field.
std::unique_ptr<ByteSource> csv_bytes(const std::string& name, std::unique_ptr<ByteSource> text, char separator);

}  // namespace specdec::data
