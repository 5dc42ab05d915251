// `data ingest`: traffic logs → redacted, deduplicated, split, tokenised shards, published in one piece.
#pragma once

#include <string>

#include "base/progress.h"
#include "base/schema/shard_index.h"
#include "data/ingest_report.h"
#include "data/options.h"

namespace specdec::data {

struct IngestResult {
  ShardIndex index;     // as written to DIR/index.json; `started` is empty there, so that equal input gives equal bytes
  IngestReport report;  // as written to DIR/ingest.json
  std::string split_rule;      // time | hash | first
  int64_t unlearnt_turns = 0;  // earlier answers of accepted chats that the template rewrites (data/tokenise.h)
};

// Order of the steps for one record: parse, --min-chars, redact, equal and near duplicates, domain, tokenise, cut,
// --skip, --limit; at the end the split, --tenant-cap and --mix. Rejected records go to DIR/rejects.jsonl {file, line,
// reason, detail}; `detail` never holds content. Of equal or near records the first stays, and --holdout-src is read
// first. With `records` the redacted records go to DIR/records.jsonl (schema specdec.traffic/1, which ingest reads
// again) instead of tokens to shards; `index` is then empty. Memory: the longest record, one shard a split, and some
// 200 bytes a record (21 to 43 with `records`); what waits for its other half or for the split is on disk. Throws
// Error(kData): a source that is no readable text file, no record accepted, chat rows for a target without a template;
// Error(kUsage): `out` exists and is not ours; Error(kNetwork) after a stop request (nothing is written).
IngestResult ingest(const IngestOptions& options, const ProgressFn& progress);

}  // namespace specdec::data
