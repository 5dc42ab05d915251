// Converts status codes and owned buffers of the Rust C ABI to specdec::Error and std::string. Private to text/.
#pragma once

#include <string>

#include "base/error.h"
#include "rust/specdec_rs.h"

namespace specdec::text {

inline std::string take(sd_bytes bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data), bytes.size);
  sd_bytes_free(bytes);
  return text;
}

// Does nothing if the status is SD_OK. Otherwise throws Error(kind), or Error(kInternal) for a panic; its text is
// `where` and the library's message.
inline void check(int32_t status, sd_bytes& message, const std::string& where, ErrorKind kind) {
  if (status == SD_OK) return;
  const std::string text = message.data ? take(message) : std::string("unknown error");
  throw Error(status == SD_INTERNAL ? ErrorKind::kInternal : kind, where.empty() ? text : where + ": " + text);
}

}  // namespace specdec::text
