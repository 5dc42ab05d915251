#include "data/audit.h"

#include <algorithm>

#include "base/fingerprint.h"
#include "base/format.h"
#include "base/statistics.h"
#include "data/redact/redact.h"
#include "data/shards/shard_reader.h"
#include "text/tokenizer.h"

namespace specdec::data {

namespace {

constexpr size_t kShownNames = 12;

void search_row(const text::Tokenizer& tokenizer, const TokenRow& row, DataAudit& audit) {
  RedactionCounts counts;
  redact(tokenizer.decode(row.tokens, true), counts);
  audit.rows_with_finds += !counts.empty();
  for (const auto& [kind, n] : counts) audit.finds[kind] += n;
}

double written_share(const DataAudit& audit) { return audit.stats.index.written_by == "target" ? 1 : 0; }

std::string counts_line(const std::map<std::string, int64_t>& counts) {
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [name, n] : counts) sorted.emplace_back(-n, name);
  std::sort(sorted.begin(), sorted.end());
  std::string text;
  for (size_t i = 0; i < std::min(sorted.size(), kShownNames); ++i)
    text += (i ? ", " : "") + (sorted[i].second.empty() ? std::string("(unknown)") : sorted[i].second) + " " +
            std::to_string(-sorted[i].first);
  if (sorted.size() > kShownNames) text += ", and " + std::to_string(sorted.size() - kShownNames) + " more";
  return text.empty() ? "none" : text;
}

std::map<std::string, int64_t> formats_of(const IngestReport& report) {
  std::map<std::string, int64_t> formats;
  for (const SourceCounts& s : report.sources)
    for (const auto& [name, n] : s.formats) formats[name] += n;
  return formats;
}

std::string report_table(const IngestReport& r) {
  std::string table;
  for (size_t i = 0; i < std::min(r.sources.size(), kShownNames); ++i) {
    const SourceCounts& s = r.sources[i];
    table += format("source          %-32s %9lld records %9lld accepted %9lld rejected  ", s.file.substr(0, 32).c_str(),
                    static_cast<long long>(s.records), static_cast<long long>(s.accepted),
                    static_cast<long long>(s.rejected)) +
             counts_line(s.formats) + "\n";
  }
  if (r.sources.size() > kShownNames)
    table +=
        "                and " + std::to_string(r.sources.size() - kShownNames) + " sources more (--json has all)\n";
  table += "formats         " + counts_line(formats_of(r)) + "\nanswers by      " + counts_line(r.writers) + "\n";
  table += "tenants         " + std::to_string(r.tenants) +
           (r.tenants ? "; largest: " + counts_line(r.largest_tenants) : "") + "\n";
  table += format(
      "dropped         %lld equal, %lld near duplicates, %lld by the tenant cap, %lld by the mix, %lld skipped\n",
      static_cast<long long>(r.duplicates), static_cast<long long>(r.near_duplicates), static_cast<long long>(r.capped),
      static_cast<long long>(r.thinned), static_cast<long long>(r.skipped));
  return table + "redacted rows   " + std::to_string(r.redacted_records) + " of " + std::to_string(r.accepted) +
         " accepted\n";
}

}  // namespace

DataAudit data_audit(const std::filesystem::path& directory, const std::filesystem::path& target) {
  DataAudit audit;
  audit.stats = data_stats(directory);
  if (std::filesystem::exists(directory / kIngestReportFile))
    audit.report =
        ingest_report_from_json(read_json(directory / kIngestReportFile), (directory / kIngestReportFile).string());
  std::optional<text::Tokenizer> tokenizer;
  if (!target.empty()) {
    if (tokenizer_digest(target) != audit.stats.index.tokenizer_digest)
      throw Error(ErrorKind::kData, directory.string() + ": was ingested for another tokenizer than that of " +
                                        target.string() + ": give the target it was made for");
    tokenizer.emplace(target);
    audit.searched = true;
  }
  const ShardReader reader(directory);
  for (const std::string split : {"train", "holdout"}) {
    std::vector<double> lengths;
    for (const TokenRow& row : reader.rows(split)) {
      lengths.push_back(static_cast<double>(row.tokens.size()));
      if (tokenizer) search_row(*tokenizer, row, audit);
    }
    if (lengths.empty()) continue;
    std::sort(lengths.begin(), lengths.end());
    audit.lengths[split] = {static_cast<int64_t>(lengths.size()),
                            quantile(lengths, 0.5),
                            quantile(lengths, 0.9),
                            quantile(lengths, 0.95),
                            quantile(lengths, 0.99),
                            lengths.back()};
  }
  return audit;
}

void visit_fields(Fields& f, LengthPercentiles& l) {
  f.type("SplitLengths", "Quantiles of the rows' lengths in one split.");
  f("rows", l.rows, kAnyCount);
  f("p50", l.p50);
  f("p90", l.p90);
  f("p95", l.p95);
  f("p99", l.p99);
  f("max", l.max);
}

struct RemainingFinds {
  std::map<std::string, int64_t> finds;
  int64_t rows = 0;
};
void visit_fields(Fields& f, RemainingFinds& remaining) {
  f.type("Remaining", "Personal data that is still in the text.");
  f("finds", remaining.finds);
  f("rows", remaining.rows, kAnyCount);
}

void visit_fields(Fields& f, DataAudit& a) {
  visit_counts(f, a.stats);
  f("length", a.lengths, MapRule{});
  f.derived("written_by_target", written_share(a));
  std::optional<RemainingFinds> remaining;
  if (a.searched) remaining = {a.finds, a.rows_with_finds};
  f("remaining", remaining);
  f("ingest", a.report);
  Json formats = a.report ? Json(formats_of(*a.report)) : Json();
  f.json("formats", formats, {{"type", {"object", "null"}}, {"additionalProperties", {{"type", "integer"}}}});
}

std::string to_table(const DataAudit& a) {
  std::string table = to_table(a.stats);
  for (const auto& [split, l] : a.lengths)
    table += format("%-15s %lld rows; tokens p50 %.0f, p90 %.0f, p95 %.0f, p99 %.0f, max %.0f\n", split.c_str(),
                    static_cast<long long>(l.rows), l.p50, l.p90, l.p95, l.p99, l.max);
  table += format("by the target   %.0f %% of the rows were written by it%s\n", 100 * written_share(a),
                  written_share(a) > 0 ? "" : ", as far as the directory says (data regenerate)");
  if (a.report) table += report_table(*a.report);
  if (a.searched)
    table += "left in text    " + counts_line(a.finds) +
             (a.finds.empty() ? "" : ", in " + std::to_string(a.rows_with_finds) + " rows") + "\n";
  return table;
}

}  // namespace specdec::data
