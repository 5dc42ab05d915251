// `data ingest`: turns traffic logs into redacted, deduplicated, split and tokenised shards, published by one rename.
#pragma once

#include <string>

#include "base/progress.h"
#include "base/schema/shard_index.h"
#include "data/options.h"
#include "data/shards/ingest_report.h"

namespace specdec::data {

// rejects.jsonl names at most this many rejected rows for each reason, because a few kilobytes of gzip may hold
// millions of bad rows. The counts in the report include all rejected rows.
inline constexpr int64_t kMostRejectLines = 10'000;

struct IngestResult {
  ShardIndex index;     // as written to DIR/index.json, where `started` is empty so that equal input gives equal bytes
  IngestReport report;  // as written to DIR/ingest.json
  std::string split_rule;                                 // the rule that was used: time | hash | first
  int64_t conversations = 0, held_out_conversations = 0;  // counted over all accepted rows; 0 if options.records
  // Number of earlier answers of accepted chats that are not learnt, because the chat template rewrites them
  // (data/tokenise.h).
  int64_t unlearnt_turns = 0;
  // For the first row of an unknown format: its keys, and a suggested --map (data/formats/field_map.h); "" = no such
  // row.
  std::string suggestion;
};

// Reads the logs and publishes the data directory. Each record goes through these steps, in this order: parse,
// --min-chars, redact, equal and near duplicates, domain, tokenise, cut, --skip, --limit. The split, --tenant-cap and
// --mix follow after the last record. Of equal or near-equal records the first is kept; --holdout-src is read first.
//
// With options.records, the redacted records go to DIR/records.jsonl (schema specdec.traffic/1, which ingest can read),
// no shards are written, and `index` has none.
//
// Rejected records go to DIR/rejects.jsonl {file, line, reason, detail}; `detail` may name keys of the row and never
// holds values. A source that looks like plain text although nobody asked for plain text, and the end of a source that
// was cut off, are rejected like one record, with a warning.
//
// Memory: the longest record, one shard per split, and about 200 bytes per record (21 to 43 with options.records).
// Batch rows that wait for their request or response, and rows that wait for the split, are on disk.
//
// Throws Error(kData) if a source is not a readable text file, no record is accepted, or there are chat rows for a
// target without a chat template; Error(kUsage) if `out` exists and was not written by this program; Error(kNetwork),
// the kind that means "try again", after a stop request (nothing is written).
IngestResult ingest(const IngestOptions& options, const ProgressFn& progress);

}  // namespace specdec::data
