// Reads the rows of a Parquet file as lines of JSON, through the Rust crate.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace specdec::text {

// Calls `take` with whole lines, one JSON object per row, and the number of bytes of the file read so far; `take` must
// not throw. Lists, structs and maps become arrays and objects, times ISO 8601 (nanoseconds: whole numbers), decimals
// strings, bytes that are not UTF-8 base64, NaN null. Throws Error(kData). Memory is what the pages' headers claim, and
// time is unbounded, so for untrusted files call it in a ConfinedChild (data/parquet_bytes.cpp).
void parquet_rows(const std::string& file,
                  const std::function<void(std::string_view lines, uint64_t stored_done)>& take);

}  // namespace specdec::text
