// Options of `specdec data ingest | stats | regenerate`. The structs are plain data that cli/ fills.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/run_options.h"
#include "base/secret.h"

namespace specdec::data {

struct IngestOptions {
  std::vector<std::string> sources;  // files, directories, patterns, "-" (data/sources/sources.h)
  std::string holdout_source;        // a file whose rows all go to the hold-out; "" = none
  std::string target, out;           // resolved model directory; output directory
  // File of the secret that names are hashed with; "" = OUT.salt, created if it is missing.
  std::string salt;
  // auto, a format's name (data/formats/row_parser.h), or plain for text without JSON.
  std::string format = "auto";
  // "prompt=question,answer=reply": the fields from which every row is read (data/formats/field_map.h); "" = the fields
  // of the row's format.
  std::string map;
  bool records = false;                     // write redacted records (records.jsonl) instead of shards; needs no target
  std::string separator = "<|endoftext|>";  // between documents of plain text; "" = one document per file
  int64_t max_length = 0;                   // tokens per row, BOS included; 0 = no cut
  std::string learn = "all";                // answers of a chat that are learnt: all | last
  double holdout = 0.05;                    // share of the conversations to hold out, 0 … 1
  // Number of conversations to hold out, used instead of the share; 0 = use the share.
  int64_t holdout_count = 0;
  std::string holdout_rule = "auto";  // auto (time if every row has a time, else hash) | time | hash | first
  // domain_field: the field that holds the domain tag, "" = "domain". domain: one tag for every row, "" = none.
  std::string domain_field, domain;
  std::string domain_rules;  // file of rules for rows without a tag (data/select/domain_rules.h)
  // Number of clusters for the rows that have no tag yet; 0 = no clustering (data/select/domain_clusters.h).
  int domain_clusters = 0;
  std::string tenant_field;  // field that holds the tenant; "" = the format's own
  int64_t tenant_cap = 0;    // maximum number of rows of one tenant in the training split; 0 = no limit
  std::string mix;           // "chat=0.5,code=0.3": shares of the training split's rows
  bool redact = true, dedup = true;
  double near_duplicates = 0;   // drop rows at least this similar (Jaccard) to an earlier row; 0 = no search
  uint64_t seed = 0;            // seed of hash split, clusters, tenant cap, mix and shuffle
  std::string order = "given";  // given | shuffle: order of the rows of the training split
  std::string written_by = "unknown";
  // Rows with fewer Unicode characters of content are rejected (for plain text, white space around it is not counted).
  int64_t min_chars = 0;
  // Rows to skip and to keep, counted over the accepted rows of all sources in file order; limit 0 = all.
  int64_t skip = 0, limit = 0;
  int64_t max_record_bytes = 16 << 20;  // longer lines and documents are rejected
};

struct StatsOptions {
  std::string data;
};

struct RegenerateOptions {
  std::string data, out;
  std::string url;     // http(s)://host[:port][/v1]
  std::string model;   // name at the endpoint; "" = the first of /v1/models
  std::string target;  // resolved local directory of the same model; "" = none (written_by is then the model's name)
  Secret api_key;
  std::optional<double> temperature;  // nothing = the row's own temperature; 1 if it has none
  int64_t max_tokens = 0;             // limit of each new answer; 0 = by the length of the old answer
  int concurrency = 4;
  bool resume = false;
  bool prompt_as_text = false;  // for endpoints that do not accept token ids
  uint64_t seed = 0;
  double request_timeout_s = 600;
};

// Throw Error(kUsage) that names the flag, the value found and the values allowed.
void validate(const IngestOptions& options);
void validate(const RegenerateOptions& options);

}  // namespace specdec::data
