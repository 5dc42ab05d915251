// OUT/ingest.json: the counts of a `data ingest` run, which `data audit` shows. It holds no content, and each tenant
// appears only as a keyed digest of its name (data/redact/id_key.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/fields.h"

namespace specdec::data {

inline constexpr const char* kIngestReportFile = "ingest.json";

struct SourceCounts {
  std::string file;
  int64_t records = 0, accepted = 0, rejected = 0;
  std::map<std::string, int64_t> formats;  // records by format, "plain" (text), "mapped" (--map) or "unknown"
};

struct IngestReport {
  static constexpr int kVersion = 1;  // schema "specdec.ingest/1"
  std::vector<SourceCounts> sources;
  std::map<std::string, int64_t> rejects;     // reason → records
  std::map<std::string, int64_t> redactions;  // kind of personal data or secret → replacements in accepted records
  std::map<std::string, int64_t> writers;     // model as named in the log → accepted records; "" = unknown
  int64_t records = 0, accepted = 0, redacted_records = 0;
  int64_t duplicates = 0, near_duplicates = 0;     // dropped records
  int64_t skipped = 0, capped = 0, thinned = 0;    // records left out by --skip, --tenant-cap, --mix
  int64_t tenants = 0;                             // number of different tenants among the accepted records
  std::map<std::string, int64_t> largest_tenants;  // "tenant-<12 hexadecimal digits>" → accepted records, at most 20

  void validate(const std::string& where) const;  // throws Error(kData)
};
void visit_fields(Fields& f, SourceCounts& counts);
void visit_contents(Fields& f, IngestReport& report);  // visits all fields except schema
void visit_fields(Fields& f, IngestReport& report);
Json to_json(const IngestReport& report);
IngestReport ingest_report_from_json(const Json& object, const std::string& where);

}  // namespace specdec::data
