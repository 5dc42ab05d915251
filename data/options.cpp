#include "data/options.h"

#include <filesystem>

#include "base/error.h"
#include "base/format.h"
#include "data/formats/field_map.h"
#include "data/formats/row_parser.h"
#include "data/select/domain_clusters.h"
#include "data/select/selection.h"

namespace specdec::data {

namespace {

void require(bool ok, const std::string& flag, const std::string& expected, const std::string& found) {
  if (!ok) throw Error(ErrorKind::kUsage, flag + ": expected " + expected + ", found '" + found + "'");
}

template <class... Names>
bool one_of(const std::string& value, Names... names) {
  return ((value == names) || ...);
}

void validate_map(const IngestOptions& o) {
  const FieldMap map = parse_field_map(o.map);
  require(map.empty() || o.format == "auto", "--format", "none beside --map, which reads every row", o.format);
  require(map.domain.empty() || o.domain_field.empty(), "--domain-field",
          "none beside --map with domain=", o.domain_field);
  require(map.tenant.empty() || o.tenant_field.empty(), "--tenant-field",
          "none beside --map with tenant=", o.tenant_field);
}

}  // namespace

void validate(const IngestOptions& o) {
  if (o.sources.empty() && o.holdout_source.empty())
    throw Error(ErrorKind::kUsage, "data ingest: give at least one file to read");
  if (o.format != "plain") parse_format_name(o.format);
  validate_map(o);
  require(!o.records || (o.mix.empty() && o.tenant_cap == 0 && o.domain_clusters == 0 && o.max_length == 0 &&
                         o.learn == "all" && o.holdout_source.empty()),
          "--records",
          "no --mix, --tenant-cap, --domain-clusters, --max-length, --learn and --holdout-src beside it: they are for "
          "shards",
          "one of them");
  require(o.records || !o.target.empty(), "--target", "a MODEL (only --records needs none)", "");
  require(o.tenant_cap >= 0, "--tenant-cap", "a number of rows >= 0 (0 = all)", std::to_string(o.tenant_cap));
  require(o.near_duplicates == 0 || (o.near_duplicates >= 0.5 && o.near_duplicates <= 1), "--near-duplicates",
          "0 (off) or a similarity from 0.5 to 1", number_text(o.near_duplicates));
  require(o.domain_clusters == 0 || (o.domain_clusters >= 2 && o.domain_clusters <= kMaxDomainClusters),
          "--domain-clusters", "0 (none) or 2 … 64", std::to_string(o.domain_clusters));
  parse_mix(o.mix);
  require(o.holdout >= 0 && o.holdout <= 1, "--holdout", "a share from 0 to 1", number_text(o.holdout));
  require(o.holdout_count >= 0, "--holdout-count", "a number >= 0", std::to_string(o.holdout_count));
  require(one_of(o.holdout_rule, "auto", "time", "hash", "first"), "--holdout-rule", "auto, time, hash or first",
          o.holdout_rule);
  require(one_of(o.order, "given", "shuffle"), "--order", "given or shuffle", o.order);
  require(one_of(o.learn, "all", "last"), "--learn", "all or last", o.learn);
  require(o.max_length == 0 || o.max_length >= 2, "--max-length", "0 (no cut) or a number of tokens >= 2",
          std::to_string(o.max_length));
  require(o.min_chars >= 0, "--min-chars", "a number >= 0", std::to_string(o.min_chars));
  require(o.skip >= 0, "--skip", "a number >= 0", std::to_string(o.skip));
  require(o.limit >= 0, "--limit", "a number >= 0 (0 = all)", std::to_string(o.limit));
  require(o.max_record_bytes >= 1 && o.max_record_bytes <= (int64_t{1} << 30), "--max-record-bytes", "1 … 2^30",
          std::to_string(o.max_record_bytes));
  require(!o.written_by.empty() && o.written_by != "target", "--written-by",
          "a writer's name (data regenerate makes rows written by the target)", o.written_by);
}

void validate(const RegenerateOptions& o) {
  std::error_code ec;
  if (std::filesystem::equivalent(o.data, o.out, ec))
    throw Error(ErrorKind::kUsage,
                "--out " + o.out + ": is the directory that is read: give a new one, so that the old answers stay");
  require(o.url.starts_with("http://") || o.url.starts_with("https://"), "--target",
          "a model directory or an http(s) URL", o.url);
  require(!o.temperature || (*o.temperature >= 0 && *o.temperature <= 10), "--temperature", "a number from 0 to 10",
          number_text(o.temperature.value_or(0)));
  require(o.max_tokens >= 0, "--max-tokens", "a number >= 0 (0 = as many as the old answer had)",
          std::to_string(o.max_tokens));
  require(o.concurrency >= 1 && o.concurrency <= 256, "--concurrency", "1 … 256", std::to_string(o.concurrency));
  require(o.request_timeout_s > 0, "--request-timeout", "seconds > 0", number_text(o.request_timeout_s));
}

}  // namespace specdec::data
