// `data ingest`: traffic logs → redacted, deduplicated, split, tokenised shards, published in one piece.
#pragma once

#include <string>

#include "base/progress.h"
#include "base/schema/shard_index.h"
#include "data/options.h"

namespace specdec::data {

struct IngestResult {
  ShardIndex index;            // as written to DIR/index.json; `started` is empty there, so that equal input gives equal bytes
  std::string split_rule;      // time | hash | first
  int64_t read_rows = 0;       // records found in the files; = accepted + rejected + duplicates + skipped
  int64_t skipped_rows = 0;    // acceptable rows left out by --skip; rows after --limit are not read
  int64_t unlearnt_turns = 0;  // earlier answers of accepted chats that the template rewrites (data/tokenise.h)
};

// Order of the steps for one record: parse, --min-chars, redact, deduplicate, tokenise, cut, --skip, --limit. Rejected rows go to
// DIR/rejects.jsonl {file, line, reason, detail}; `detail` never holds content. Rows are deduplicated after redaction by the
// SHA-256 of their content with white space collapsed; of equal rows the first stays, and --holdout-src is read first.
// Throws Error(kData): a source that is no readable text file, no row accepted, chat rows for a target without a template;
// Error(kUsage): `out` exists and is not ours; Error(kNetwork) after a stop request (nothing is written).
IngestResult ingest(const IngestOptions& options, const ProgressFn& progress);

}  // namespace specdec::data
