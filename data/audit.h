// `data audit`: what is in a data directory and where it came from, for whoever has to answer for it. Reading it checks
// every digest.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/json.h"
#include "data/ingest_report.h"
#include "data/stats.h"

namespace specdec::data {

struct LengthPercentiles {
  int64_t rows = 0;
  double p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;  // tokens of a row
};

struct DataAudit {
  DataStats stats;
  std::optional<IngestReport> report;                // absent in directories of data regenerate and of older versions
  std::map<std::string, LengthPercentiles> lengths;  // "train", "holdout"
  bool searched = false;                             // the two below were looked for
  std::map<std::string, int64_t> finds;              // kind → personal data and secrets left in the text of the rows
  int64_t rows_with_finds = 0;
};

// With a `target` the rows are turned back into text by its tokenizer and searched as `data ingest` does: what
// --no-redact let through. Throws Error(kData): the directory is no output of ours, is damaged, or belongs to another
// tokenizer; Error(kModel) for the target.
DataAudit data_audit(const std::filesystem::path& directory, const std::filesystem::path& target);
Json to_json(const DataAudit& audit);  // schema "specdec.data-audit/1"
std::string to_table(const DataAudit& audit);

}  // namespace specdec::data
