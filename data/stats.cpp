#include "data/stats.h"

#include <algorithm>
#include <set>
#include <unordered_set>
#include <vector>

#include "base/format.h"
#include "base/statistics.h"
#include "data/shards/shard_reader.h"

namespace specdec::data {

namespace {

uint64_t bigram(int32_t previous, int32_t token) {
  return static_cast<uint64_t>(static_cast<uint32_t>(previous)) << 32 | static_cast<uint32_t>(token);
}

struct Accumulator {
  std::vector<double> lengths;
  std::map<std::string, std::set<std::string>> conversations;  // split → names of its conversations
  std::map<std::pair<std::string, std::string>, std::set<std::string>> by_domain;
  std::unordered_set<uint64_t> train_bigrams;
  int64_t covered = 0, asked = 0;
};

void count_row(const TokenRow& row, const std::string& split, DataStats& stats, Accumulator& sums) {
  const int64_t loss = std::count(row.loss_mask.begin(), row.loss_mask.end(), 1);
  for (GroupCounts* g : {&stats.splits[split], &stats.domains[split][row.domain]}) {
    ++g->rows;
    g->tokens += static_cast<int64_t>(row.tokens.size());
    g->loss_tokens += loss;
  }
  sums.conversations[split].insert(row.conversation);
  sums.by_domain[{split, row.domain}].insert(row.conversation);
  sums.lengths.push_back(static_cast<double>(row.tokens.size()));
  stats.predicted_tokens += static_cast<int64_t>(row.tokens.size()) - 1;
  for (size_t i = 1; i < row.tokens.size(); ++i) {
    const uint64_t pair = bigram(row.tokens[i - 1], row.tokens[i]);
    if (split == "train") {
      sums.train_bigrams.insert(pair);
    } else if (row.loss_mask[i]) {
      ++sums.asked;
      sums.covered += sums.train_bigrams.count(pair) != 0;
    }
  }
}

std::string line(const std::string& name, const GroupCounts& g) {
  return format("%-24s %10lld %14lld %14lld %14lld\n", name.substr(0, 24).c_str(), static_cast<long long>(g.rows),
                static_cast<long long>(g.conversations), static_cast<long long>(g.tokens),
                static_cast<long long>(g.loss_tokens));
}

}  // namespace

DataStats data_stats(const std::filesystem::path& directory) {
  const ShardReader reader(directory);
  DataStats stats;
  stats.index = reader.index();
  stats.digest = reader.digest();
  Accumulator sums;
  // Train comes first, because the token pairs of the hold-out are looked up among the pairs of train.
  for (const std::string split : {"train", "holdout"})
    for (const TokenRow& row : reader.rows(split)) count_row(row, split, stats, sums);
  for (auto& [split, g] : stats.splits) g.conversations = static_cast<int64_t>(sums.conversations[split].size());
  for (auto& [key, names] : sums.by_domain)
    stats.domains[key.first][key.second].conversations = static_cast<int64_t>(names.size());
  for (const std::string& name : sums.conversations["holdout"])
    stats.shared_conversations += sums.conversations["train"].count(name) != 0;
  if (!sums.lengths.empty()) {
    stats.length_p50 = quantile(sums.lengths, 0.5);
    stats.length_p95 = quantile(sums.lengths, 0.95);
    stats.length_max = static_cast<int64_t>(*std::max_element(sums.lengths.begin(), sums.lengths.end()));
  }
  stats.has_coverage = sums.asked > 0 && stats.splits.count("train") != 0;
  if (stats.has_coverage) stats.bigram_coverage = static_cast<double>(sums.covered) / static_cast<double>(sums.asked);
  return stats;
}

void visit_fields(Fields& f, GroupCounts& g) {
  f.type("GroupSize", "The size of a split or of a domain in it.");
  f("rows", g.rows, kAnyCount);
  f("conversations", g.conversations, kAnyCount);
  f("tokens", g.tokens, kAnyCount);
  f("loss_tokens", g.loss_tokens, kAnyCount);
}

void visit_counts(Fields& f, DataStats& s) {
  f("data_digest", s.digest);
  f("target_id", s.index.target_id);
  f("tokenizer_digest", s.index.tokenizer_digest);
  f("written_by", s.index.written_by);
  f("splits", s.splits, MapRule{});
  f("domains", s.domains, MapRule{}, MapRule{});
  f("predicted_tokens", s.predicted_tokens, kAnyCount);
  f("shared_conversations", s.shared_conversations, kAnyCount);
  std::optional<double> coverage;
  if (s.has_coverage) coverage = s.bigram_coverage;
  f("bigram_coverage", coverage, {0, 1});
  f("max_length", s.index.max_length, kAnyCount);
  f("truncated_rows", s.index.truncated_rows, kAnyCount);
  f("dropped_tokens", s.index.dropped_tokens, kAnyCount);
  f("duplicates", s.index.duplicates, kAnyCount);
  f("rejects", s.index.rejects);
  f("redactions", s.index.redactions);
}

void visit_fields(Fields& f, DataStats& s) {
  visit_counts(f, s);
  f.group("length", [&](Fields& length) {
    length.type("Lengths", "Quantiles of the rows' lengths in tokens.");
    length("p50", s.length_p50);
    length("p95", s.length_p95);
    length("max", s.length_max, kAnyCount);
  });
}

std::string counts_text(const std::map<std::string, int64_t>& counts) {
  std::string text;
  for (const auto& [name, n] : counts) text += (text.empty() ? "" : ", ") + name + " " + std::to_string(n);
  return text;
}

std::string to_table(const DataStats& s) {
  const auto list = [](const auto& counts) { return counts.empty() ? "none" : counts_text(counts); };
  std::string table = format("%-24s %10s %14s %14s %14s\n", "", "rows", "conversations", "tokens", "learnt");
  for (const auto& [split, g] : s.splits) {
    table += line(split, g);
    const auto& groups = s.domains.at(split);
    if (groups.size() > 1 || !groups.begin()->first.empty())
      for (const auto& [domain, d] : groups)
        table += line("  " + (domain.empty() ? std::string("(no domain)") : domain), d);
  }
  table += format("row length      p50 %.0f, p95 %.0f, max %lld tokens; cut %lld rows, %lld tokens dropped\n",
                  s.length_p50, s.length_p95, static_cast<long long>(s.length_max),
                  static_cast<long long>(s.index.truncated_rows), static_cast<long long>(s.index.dropped_tokens));
  if (s.has_coverage)
    table += format("bigram coverage %.1f %% of the hold-out's learnt tokens follow a pair seen in train\n",
                    100 * s.bigram_coverage);
  table += "written by      " + s.index.written_by + "\nrejected        " + list(s.index.rejects) +
           "\nduplicates      " + std::to_string(s.index.duplicates) + "\nredacted        " + list(s.index.redactions) +
           "\ndigest          " + s.digest + "\n";
  if (s.shared_conversations > 0)
    table += "WARNING         " + std::to_string(s.shared_conversations) + " conversations are in both splits\n";
  return table;
}

}  // namespace specdec::data
