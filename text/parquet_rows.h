// Reads the rows of a Parquet file as lines of JSON, through the Rust crate.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace specdec::text {

// Calls `take` with whole lines, one JSON object per row, and the number of bytes of the file read so far; `take` must
// not throw. Lists, structs and maps become arrays and objects. Times become ISO 8601, but times in nanoseconds become
// whole numbers. Decimals become strings, bytes that are not UTF-8 become base64, and NaN becomes null. Throws
// Error(kData). The page headers in the file decide how much memory is taken, and the time is not bounded, so read
// untrusted files in a ConfinedChild (data/sources/parquet_bytes.cpp).
void parquet_rows(const std::string& file,
                  const std::function<void(std::string_view lines, uint64_t stored_done)>& take);

}  // namespace specdec::text
