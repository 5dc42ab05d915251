// Writes a TrafficRecord as one line of JSON without building the tree that to_json builds, because records are written
// by the gigabyte.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/schema/traffic_record.h"

namespace specdec::data {

// The origin of a record. It is written into the record's line, but not read back.
struct RecordOrigin {
  std::string_view format, file;
  int64_t line = 0;
  std::string tenant;  // already hashed; "" = none
  // Kind of personal data or secret → number of replacements. Not written if null or empty.
  const std::map<std::string, int64_t>* redactions = nullptr;
};

// Replaces `out` by the bytes of canonical_json(to_json(record)), with the keys "redactions", "source" and "tenant" of
// `origin` added and without a newline. Strings must be valid UTF-8.
void write_record_line(const TrafficRecord& record, const RecordOrigin& origin, std::string& out);

}  // namespace specdec::data
