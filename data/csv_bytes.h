// A CSV file (RFC 4180) as lines of JSON, one object a record: the names of the header are the keys, the values
// strings.
#pragma once

#include "data/byte_source.h"

namespace specdec::data {

// UTF-8 with or without a byte-order mark; LF or CR LF after a record; an empty field is null, an empty line no record.
// Memory: a block and the header (64 KiB). read() throws Error(kData) where the text is no such CSV or a record has not
// as many fields as the header: after a broken quote nothing can be trusted.
std::unique_ptr<ByteSource> csv_bytes(const std::string& name, std::unique_ptr<ByteSource> text);

}  // namespace specdec::data
