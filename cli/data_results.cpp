#include "cli/data_results.h"

#include "cli/results.h"

namespace specdec::cli {

namespace {

void visit_read_rows(Fields& f, ReadRows& r, Presence presence) {
  f({"split_rule", "", presence}, r.split_rule);
  f({"read_rows", "", presence}, r.read, kAnyCount);
  f({"skipped_rows", "", presence}, r.skipped, kAnyCount);
  f({"near_duplicates", "", presence}, r.near_duplicates, kAnyCount);
  f({"capped_rows", "", presence}, r.capped, kAnyCount);
  f({"thinned_rows", "", presence}, r.thinned, kAnyCount);
  f({"unlearnt_turns", "", presence}, r.unlearnt_turns, kAnyCount);
  f(if_any("suggestion", "How rows of no known format can be read."), r.suggestion);
}

}  // namespace

void visit_fields(Fields& f, InputFile& file) {
  f.type("InputFile", "A file that was read.");
  f("path", file.path);
  f(if_any("sha256"), file.sha256);
  f(if_any("id"), file.id);
}

void visit_fields(Fields& f, SplitSize& size) {
  f.type("SplitSize", "The size of one split.");
  f("rows", size.rows, kAnyCount);
  f("tokens", size.tokens, kAnyCount);
  f("loss_tokens", size.loss_tokens, kAnyCount);
}

std::map<std::string, SplitSize> split_sizes(const ShardIndex& index) {
  std::map<std::string, SplitSize> splits;
  for (const ShardFile& s : index.shards) {
    SplitSize& size = splits[s.split];
    size.rows += s.num_rows;
    size.tokens += s.num_tokens;
    size.loss_tokens += s.num_loss_tokens;
  }
  return splits;
}

void visit_fields(Fields& f, ShardsResult& r) {
  f.type("ShardsResult", "The shards that were written (index.json), by `data ingest` and `data regenerate`.");
  visit_head(f, r.head, "data", {"done"});
  f("inputs", r.inputs);
  f("out", r.out);
  visit_contents(f, r.index);
  f("splits", r.splits, MapRule{});
  ReadRows read = r.read.value_or(ReadRows{});
  visit_read_rows(f, read, r.read ? Presence::kAlways : Presence::kIfAny);
  f(if_any("next"), read.next);
  Answers answers = r.answers.value_or(Answers{});
  const Presence answered = r.answers ? Presence::kAlways : Presence::kIfAny;
  f({"model", "", answered}, answers.model);
  f({"asked", "Rows answered in this run.", answered}, answers.asked, kAnyCount);
  f({"reused", "Rows answered by an earlier run.", answered}, answers.reused, kAnyCount);
  f({"turns", "New answers of all rows.", answered}, answers.turns, kAnyCount);
  f({"ended_early", "Rows that end before their last answer, by reason.", answered}, answers.ended_early);
}

void visit_fields(Fields& f, RecordsResult& r) {
  f.type("RecordsResult", "The records that `data ingest --records` wrote.");
  visit_head(f, r.head, "ingest", {"done"});
  visit_contents(f, r.report);
  f("inputs", r.inputs);
  f("out", r.out);
  visit_read_rows(f, r.read, Presence::kAlways);
}

void visit_fields(Fields& f, StatsResult& r) {
  f.type("StatsResult", "Counts and lengths of a data directory.");
  visit_head(f, r.head, "data-stats", {"done"});
  f("inputs", r.inputs);
  visit_fields(f, r.stats);
}

void visit_fields(Fields& f, AuditResult& r) {
  f.type("AuditResult", "What a data directory contains and where it came from.");
  visit_head(f, r.head, "data-audit", {"done"});
  f("inputs", r.inputs);
  visit_fields(f, r.audit);
}

void visit_fields(Fields& f, LabelsResult& r) {
  f.type("LabelsResult", "The target's answers that were written (index.json), by `data label`.");
  visit_head(f, r.head, "labels", {"done"});
  f("out", r.out);
  visit_contents(f, r.index);
  f("made", r.made, kAnyCount);
  f("kept", r.kept, kAnyCount);
  f("refused", r.refused, kAnyCount);
}

void describe_data_results(Results& results) {
  results.add<ShardsResult>({.commands = {"data ingest", "data regenerate"}});
  results.add<RecordsResult>({.commands = {"data ingest"}});
  results.add<StatsResult>({.commands = {"data stats"}});
  results.add<AuditResult>({.commands = {"data audit"}});
  results.add<LabelsResult>({.commands = {"data label"}});
}

}  // namespace specdec::cli
