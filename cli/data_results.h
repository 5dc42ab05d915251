// The objects that `specdec data` prints with --json.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/schema/label_index.h"
#include "base/schema/result_head.h"
#include "base/schema/shard_index.h"
#include "data/audit.h"
#include "data/stats.h"

namespace specdec::cli {

struct InputFile {
  std::string path, sha256, id;
};
struct SplitSize {
  int64_t rows = 0, tokens = 0, loss_tokens = 0;
};
std::map<std::string, SplitSize> split_sizes(const ShardIndex& index);

// The fields that only the result of `data ingest` has. They describe the rows that it read.
struct ReadRows {
  std::string split_rule, suggestion, next;
  int64_t read = 0, skipped = 0, near_duplicates = 0, capped = 0, thinned = 0, unlearnt_turns = 0;
};
// The fields that only the result of `data regenerate` has. They describe the new answers.
struct Answers {
  std::string model;
  int64_t asked = 0, reused = 0, turns = 0;
  std::map<std::string, int64_t> ended_early;
};

struct DataResult {
  ResultHead head;
  std::vector<InputFile> inputs;
  std::string out;
};
struct ShardsResult : DataResult {
  ShardIndex index;
  std::map<std::string, SplitSize> splits;
  std::optional<ReadRows> read;
  std::optional<Answers> answers;
};
struct RecordsResult : DataResult {
  data::IngestReport report;
  ReadRows read;
};
struct StatsResult : DataResult {
  data::DataStats stats;
};
struct AuditResult : DataResult {
  data::DataAudit audit;
};
struct LabelsResult : DataResult {
  LabelIndex index;
  int64_t made = 0, kept = 0, refused = 0;
};
void visit_fields(Fields& f, ShardsResult& result);
void visit_fields(Fields& f, RecordsResult& result);
void visit_fields(Fields& f, StatsResult& result);
void visit_fields(Fields& f, AuditResult& result);
void visit_fields(Fields& f, LabelsResult& result);

}  // namespace specdec::cli
