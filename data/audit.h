// `data audit`: reports what a data directory contains and where it came from, for people who are accountable for it.
// Reading the directory checks every digest.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/json.h"
#include "data/shards/ingest_report.h"
#include "data/stats.h"

namespace specdec::data {

struct LengthPercentiles {
  int64_t rows = 0;
  double p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;  // tokens per row
};

struct DataAudit {
  DataStats stats;
  std::optional<IngestReport> report;  // absent in directories written by data regenerate or by older versions
  std::map<std::string, LengthPercentiles> lengths;  // split ("train", "holdout") → lengths of its rows
  bool searched = false;                 // false: the rows were not searched, so the next two members are empty
  std::map<std::string, int64_t> finds;  // kind of personal data or secret → how often it still occurs in the rows
  int64_t rows_with_finds = 0;
};

// Audits a data directory. With a non-empty `target`, decodes the rows with the target's tokenizer and searches their
// text for personal data and secrets as `data ingest` does. The search shows what stayed in data that was ingested with
// --no-redact. Throws Error(kData) if the directory was not written by this program, is damaged, or belongs to another
// tokenizer; Error(kModel) if the target's tokenizer cannot be read.
DataAudit data_audit(const std::filesystem::path& directory, const std::filesystem::path& target);
void visit_fields(Fields& f, DataAudit& audit);
std::string to_table(const DataAudit& audit);

}  // namespace specdec::data
