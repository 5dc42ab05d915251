// A TrafficRecord as one line of JSON, without building the tree that to_json builds: records are written by the
// gigabyte.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/schema/traffic_record.h"

namespace specdec::data {

// Where a record comes from; written beside it and not read back.
struct RecordOrigin {
  std::string_view format, file;
  int64_t line = 0;
  std::string tenant;                                          // already hashed; "" = none
  const std::map<std::string, int64_t>* redactions = nullptr;  // finds by kind; none or empty: not written
};

// The same bytes as canonical_json(to_json(record)) with "redactions", "source" and "tenant" among its keys, and no
// newline. Strings must be valid UTF-8. Replaces `out`.
void write_record_line(const TrafficRecord& record, const RecordOrigin& origin, std::string& out);

}  // namespace specdec::data
