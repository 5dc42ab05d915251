#include "data/ingest_report.h"

#include "base/sha256.h"

namespace specdec::data {

namespace {

constexpr int64_t kMaxReportCount = int64_t{1} << 50;
constexpr size_t kMaxNames = 65536;

std::map<std::string, int64_t> named_counts(const Json& object, const char* key, const std::string& where) {
  std::map<std::string, int64_t> counts;
  for (const auto& [name, count] : json_object(object, key, kMaxNames, where, ErrorKind::kData).items()) {
    if (!count.is_number_integer()) throw Error(ErrorKind::kData, where + ": " + key + ": expected whole numbers");
    counts[name] = count.get<int64_t>();
  }
  return counts;
}

int64_t count_of(const Json& object, const char* key, const std::string& where) { return json_int(object, key, 0, kMaxReportCount, where, ErrorKind::kData); }

}  // namespace

std::string tenant_name(const std::string& tenant) { return tenant.empty() ? "" : "tenant-" + sha256_hex(tenant).substr(0, 12); }

void IngestReport::validate(const std::string& where) const {
  int64_t rejected = 0, in_sources = 0;
  for (const auto& [reason, n] : rejects) rejected += n;
  for (const SourceCounts& s : sources) in_sources += s.records;
  if (in_sources != records) throw Error(ErrorKind::kData, where + ": records: the sources hold " + std::to_string(in_sources) + ", found " + std::to_string(records));
  if (accepted + rejected + duplicates + near_duplicates + skipped != records)
    throw Error(ErrorKind::kData, where + ": expected records = accepted + rejects + duplicates + near_duplicates + skipped");
}

Json to_json(const IngestReport& r) {
  Json sources = Json::array();
  for (const SourceCounts& s : r.sources)
    sources.push_back({{"file", s.file}, {"records", s.records}, {"accepted", s.accepted}, {"rejected", s.rejected}, {"formats", s.formats}});
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
    r.sources.push_back({json_string(s, "file", at, ErrorKind::kData), count_of(s, "records", at), count_of(s, "accepted", at), count_of(s, "rejected", at), named_counts(s, "formats", at)});
  }
  r.rejects = named_counts(object, "rejects", where);
  r.redactions = named_counts(object, "redactions", where);
  r.writers = named_counts(object, "writers", where);
  r.largest_tenants = named_counts(object, "largest_tenants", where);
  const std::pair<const char*, int64_t*> counts[] = {{"records", &r.records}, {"accepted", &r.accepted}, {"redacted_records", &r.redacted_records},
                                                     {"duplicates", &r.duplicates}, {"near_duplicates", &r.near_duplicates}, {"skipped", &r.skipped},
                                                     {"capped", &r.capped}, {"thinned", &r.thinned}, {"tenants", &r.tenants}};
  for (const auto& [key, value] : counts) *value = count_of(object, key, where);
  r.validate(where);
  return r;
}

}  // namespace specdec::data
