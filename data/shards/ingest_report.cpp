#include "data/shards/ingest_report.h"

namespace specdec::data {

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

void visit_fields(Fields& f, SourceCounts& s) {
  f.type("SourceCounts", "What became of the rows of one log.");
  f("file", s.file);
  f("records", s.records, kAnyCount);
  f("accepted", s.accepted, kAnyCount);
  f("rejected", s.rejected, kAnyCount);
  f(defaulted("formats"), s.formats);
}

void visit_contents(Fields& f, IngestReport& r) {
  f("sources", r.sources, {.numbered = true});
  f(defaulted("rejects"), r.rejects);
  f(defaulted("redactions"), r.redactions);
  f(defaulted("writers"), r.writers);
  f("records", r.records, kAnyCount);
  f("accepted", r.accepted, kAnyCount);
  f("redacted_records", r.redacted_records, kAnyCount);
  f("duplicates", r.duplicates, kAnyCount);
  f("near_duplicates", r.near_duplicates, kAnyCount);
  f("skipped", r.skipped, kAnyCount);
  f("capped", r.capped, kAnyCount);
  f("thinned", r.thinned, kAnyCount);
  f("tenants", r.tenants, kAnyCount);
  f(defaulted("largest_tenants"), r.largest_tenants);
}

void visit_fields(Fields& f, IngestReport& r) {
  f.type("IngestCounts", "What became of the rows that were read (ingest.json).");
  f.schema("ingest", IngestReport::kVersion);
  visit_contents(f, r);
}

Json to_json(const IngestReport& report) { return json_of(report); }

IngestReport ingest_report_from_json(const Json& object, const std::string& where) {
  IngestReport r = read_fields<IngestReport>(object, where);
  r.validate(where);
  return r;
}

}  // namespace specdec::data
