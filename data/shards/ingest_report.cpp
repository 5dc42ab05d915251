#include "data/shards/ingest_report.h"

namespace specdec::data {

namespace {

int64_t count_of(const Json& object, const char* key, const std::string& where) {
  return json_int(object, key, {0, kMaxCount}, where, ErrorKind::kData);
}

}  // namespace

void IngestReport::validate(const std::string& where) const {
  int64_t rejected = 0, in_sources = 0;
  for (const auto& [reason, n] : rejects) rejected += n;
  for (const SourceCounts& s : sources) in_sources += s.records;
  if (in_sources != records)
    throw Error(ErrorKind::kData, where + ": records: the sources hold " + std::to_string(in_sources) + ", found " +
                                      std::to_string(records));
  if (accepted + rejected + duplicates + near_duplicates + skipped != records)
    throw Error(ErrorKind::kData,
                where + ": expected records = accepted + rejects + duplicates + near_duplicates + skipped");
}

Json to_json(const IngestReport& r) {
  Json sources = Json::array();
  for (const SourceCounts& s : r.sources)
    sources.push_back({{"file", s.file},
                       {"records", s.records},
                       {"accepted", s.accepted},
                       {"rejected", s.rejected},
                       {"formats", s.formats}});
  return {{"schema", "specdec.ingest/" + std::to_string(IngestReport::kVersion)},
          {"sources", sources},
          {"rejects", r.rejects},
          {"redactions", r.redactions},
          {"writers", r.writers},
          {"records", r.records},
          {"accepted", r.accepted},
          {"redacted_records", r.redacted_records},
          {"duplicates", r.duplicates},
          {"near_duplicates", r.near_duplicates},
          {"skipped", r.skipped},
          {"capped", r.capped},
          {"thinned", r.thinned},
          {"tenants", r.tenants},
          {"largest_tenants", r.largest_tenants}};
}

IngestReport ingest_report_from_json(const Json& object, const std::string& where) {
  require_schema(object, "ingest", IngestReport::kVersion, where);
  IngestReport r;
  for (const Json& s : json_array(object, "sources", size_t{1} << 20, where, ErrorKind::kData)) {
    const std::string at = where + ": sources[" + std::to_string(r.sources.size()) + "]";
    r.sources.push_back({json_string(s, "file", at, ErrorKind::kData), count_of(s, "records", at),
                         count_of(s, "accepted", at), count_of(s, "rejected", at),
                         json_counts(s, "formats", at, ErrorKind::kData)});
  }
  r.rejects = json_counts(object, "rejects", where, ErrorKind::kData);
  r.redactions = json_counts(object, "redactions", where, ErrorKind::kData);
  r.writers = json_counts(object, "writers", where, ErrorKind::kData);
  r.largest_tenants = json_counts(object, "largest_tenants", where, ErrorKind::kData);
  const std::pair<const char*, int64_t*> counts[] = {{"records", &r.records},
                                                     {"accepted", &r.accepted},
                                                     {"redacted_records", &r.redacted_records},
                                                     {"duplicates", &r.duplicates},
                                                     {"near_duplicates", &r.near_duplicates},
                                                     {"skipped", &r.skipped},
                                                     {"capped", &r.capped},
                                                     {"thinned", &r.thinned},
                                                     {"tenants", &r.tenants}};
  for (const auto& [key, value] : counts) *value = count_of(object, key, where);
  r.validate(where);
  return r;
}

}  // namespace specdec::data
