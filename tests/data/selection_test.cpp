#include "data/select/selection.h"

#include "base/philox.h"
#include "data/audit.h"
#include "data/redact/id_key.h"
#include "data/select/domain_clusters.h"
#include "data/select/domain_rules.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

// Returns the number of kept rows by domain, without the hold-out.
std::map<std::string, int64_t> kept_by_domain(const std::vector<RowTags>& rows, const std::vector<std::string>& domains,
                                              const SelectionOptions& options) {
  const Selection s = select_rows(rows, domains, options);
  std::map<std::string, int64_t> counts;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].holdout)
      EXPECT_TRUE(s.kept[i]);
    else if (s.kept[i])
      ++counts[domains[rows[i].domain]];
  }
  return counts;
}

TEST(Selection, MixKeepsAsManyRowsAsTheSharesAllow) {
  const std::vector<std::string> domains = {"chat", "code", "math", ""};
  std::vector<RowTags> rows;
  const size_t counts[] = {1000, 100, 300, 100};
  for (uint32_t d = 0; d < 4; ++d)
    for (size_t i = 0; i < counts[d]; ++i) rows.push_back({0, d, false});
  for (int i = 0; i < 50; ++i) rows.push_back({0, 0, true});
  using Counts = std::map<std::string, int64_t>;
  EXPECT_EQ(kept_by_domain(rows, domains, {0, parse_mix("chat=0.5,code=0.5"), 1}),
            (Counts{{"chat", 100}, {"code", 100}}));
  EXPECT_EQ(kept_by_domain(rows, domains, {0, parse_mix("code=0.2"), 1}),
            (Counts{{"code", 100}, {"chat", 285}, {"math", 85}, {"", 28}}));
  EXPECT_EQ(kept_by_domain(rows, domains, {0, parse_mix("math=0.6,chat=0.4"), 1}),
            (Counts{{"math", 300}, {"chat", 200}}));
  EXPECT_EQ(kept_by_domain(rows, domains, {0, {}, 1}),
            (Counts{{"chat", 1000}, {"code", 100}, {"math", 300}, {"", 100}}));
  EXPECT_EQ(select_rows(rows, domains, {0, parse_mix("chat=0.5,code=0.5"), 1}).thinned, 1300);
  EXPECT_THROW(select_rows(rows, domains, {0, parse_mix("law=0.5"), 1}), Error);
  // Another seed keeps other rows.
  const auto mix = parse_mix("chat=0.5,code=0.5");
  EXPECT_NE(select_rows(rows, domains, {0, mix, 1}).kept, select_rows(rows, domains, {0, mix, 2}).kept);
  EXPECT_EQ(select_rows(rows, domains, {0, mix, 2}).kept, select_rows(rows, domains, {0, mix, 2}).kept);
}

TEST(Selection, MixIsChecked) {
  EXPECT_EQ(parse_mix("a=0.25,b c=0.75"), (std::map<std::string, double>{{"a", 0.25}, {"b c", 0.75}}));
  EXPECT_TRUE(parse_mix("").empty());
  for (const char* bad :
       {"a", "=1", "a=", "a=x", "a=0", "a=-1", "a=1.1", "a=nan", "a=0.6,b=0.6", "a=0.1,a=0.1", "a=0.5,,b=0.5"})
    EXPECT_THROW(parse_mix(bad), Error) << bad;
}

TEST(Selection, CapHoldsForEveryTenantAndNotForRowsWithoutOne) {
  std::vector<RowTags> rows;
  for (uint64_t i = 0; i < 900; ++i) rows.push_back({i % 9 < 6 ? 1 : i % 9 < 8 ? uint64_t{2} : 0, 0, i % 10 == 0});
  const Selection s = select_rows(rows, {""}, {150, {}, 7});
  std::map<uint64_t, int64_t> kept, first_half;
  for (size_t i = 0; i < rows.size(); ++i)
    if (s.kept[i] && !rows[i].holdout) ++kept[rows[i].tenant], first_half[rows[i].tenant] += i < rows.size() / 2;
  EXPECT_EQ(kept[1], 150);
  EXPECT_EQ(kept[2], 150);
  EXPECT_EQ(kept[0], 90);
  EXPECT_EQ(s.capped, 540 - 150 + 180 - 150);
  EXPECT_NEAR(static_cast<double>(first_half[1]), 75, 25);  // rows are kept from the whole log, not only its beginning
}

TEST(DomainRules, FirstMatchInItsPartCounts) {
  const Scratch s;
  const DomainRules rules(s.write("rules",
                                  "# what it is about\ncode in answer: ```\nsql: (?i)\\bselect\\b.*\\bfrom\\b\n\nbot "
                                  "in system: robot\nbig in model: 70b$\nqa in prompt: \\?\\s*$\r\n"));
  TrafficRecord chat;
  chat.messages = {{"system", "You are a robot."},
                   {"user", "SELECT x\nFROM y?"},
                   {"assistant", "a?"},
                   {"user", "so"},
                   {"assistant", "b"}};
  EXPECT_EQ(rules.tag(chat), "bot");
  chat.messages[1].content = "select x from y";
  EXPECT_EQ(rules.tag(chat), "sql");
  chat.messages[4].content = "```x```";
  EXPECT_EQ(rules.tag(chat), "code");
  chat.messages = {{"user", "```\nwhy? "}, {"assistant", "because"}};
  EXPECT_EQ(rules.tag(chat), "qa");
  chat.writer = "llama-70b";
  EXPECT_EQ(rules.tag(chat), "big");
  TrafficRecord pair;
  pair.prompt = "why";
  pair.response = "?";
  EXPECT_EQ(rules.tag(pair), "");
  for (const char* bad : {"", "# nothing\n", "code ```\n", ": x\n", "a in nowhere: x\n", "a: (\n", "a: (?=x)\n"})
    EXPECT_THROW(DomainRules(s.write("bad", bad)), Error) << bad;
  EXPECT_THROW(DomainRules(s / "absent"), Error);
}

// Returns prompts of three kinds; each kind has its own words, and all share some common words.
std::vector<std::pair<int, TrafficRecord>> kinds_of_prompts(int n) {
  const std::vector<std::vector<std::string>> words = {{"function", "compile", "pointer", "loop", "array", "string"},
                                                       {"invoice", "refund", "order", "delivery", "parcel", "customer"},
                                                       {"triangle", "theorem", "prove", "integral", "sum", "angle"}};
  PhiloxStream random(9, 0);
  std::vector<std::pair<int, TrafficRecord>> rows;
  for (int i = 0; i < n; ++i) {
    const int kind = i % 6 < 3 ? 0 : i % 6 < 5 ? 1 : 2;
    std::string prompt;
    for (int w = 0; w < 12; ++w)
      prompt += w % 3 == 0 ? "please the a " : words[static_cast<size_t>(kind)][random.below(6)] + " ";
    TrafficRecord r;
    r.messages = {{"user", prompt}, {"assistant", "answer " + std::to_string(i)}};
    rows.emplace_back(kind, r);
  }
  return rows;
}

TEST(DomainClusters, FindTheKindsAndNameThemBySize) {
  const Scratch s;
  const auto rows = kinds_of_prompts(1200);
  for (const uint64_t seed : {1, 2, 3}) {
    DomainClusters clusters(s.path(), 3, seed), again(s.path(), 3, seed);
    for (const auto& [kind, r] : rows) clusters.add(r), again.add(r);
    const std::vector<uint8_t> found = clusters.assign();
    EXPECT_EQ(found, again.assign());
    int right = 0;
    for (size_t i = 0; i < rows.size(); ++i) right += found[i] == rows[i].first;
    EXPECT_GE(right, 1180) << seed;
  }
  DomainClusters same(s.path(), 8, 1), none(s.path(), 8, 1);
  for (int i = 0; i < 5; ++i) same.add(rows[0].second);
  EXPECT_EQ(same.assign(), std::vector<uint8_t>(5, 0));
  EXPECT_TRUE(none.assign().empty());
}

TEST(DomainClusters, IngestTagsOnlyWhatHasNoTag) {
  const Scratch s;
  std::string file;
  for (const auto& [kind, r] : kinds_of_prompts(300)) {
    Json row = {{"messages", Json::array()}};
    for (const ChatMessage& m : r.messages) row["messages"].push_back({{"role", m.role}, {"content", m.content}});
    if (kind == 2) row["domain"] = "maths";
    file += row.dump() + "\n";
  }
  IngestOptions o = ingest_options(s.write("c.jsonl", file), make_toy_target(s / "target"), s / "out");
  o.domain_clusters = 2;
  o.mix = "cluster-1=0.5,cluster-2=0.5";
  ingest(o, {});
  const auto domains = data_stats(o.out).domains.at("train");
  EXPECT_EQ(domains.size(), 2u);
  EXPECT_NEAR(static_cast<double>(domains.at("cluster-1").rows), 100, 5);
  EXPECT_EQ(domains.at("cluster-1").rows, domains.at("cluster-2").rows);
  o.mix = "";
  ingest(o, {});
  EXPECT_EQ(data_stats(o.out).domains.at("train").at("maths").rows, 50);
  o.domain_clusters = 1;
  EXPECT_THROW(ingest(o, {}), Error);
}

std::string traffic(int n) {
  std::string file;
  for (int i = 0; i < n; ++i)
    file +=
        Json{{"text", "row number " + std::to_string(i) + (i % 3 ? " code" : " chat") + (i % 10 ? "" : " mail a@b.de")},
             {"user", i % 4 ? "big" : "small"},
             {"conversation_id", "c" + std::to_string(i)}}
            .dump() +
        "\n";
  return file;
}

TEST(Selection, IngestAppliesRulesCapAndMixToTheTrainingSplitAndAuditTells) {
  const Scratch s;
  const fs::path target = make_toy_target(s / "target");
  IngestOptions o = ingest_options(s.write("t.jsonl", traffic(400) + "broken\n"), target, s / "out");
  o.domain_rules = s.write("rules", "code: code$|code mail\nchat: chat\n").string();
  o.holdout = 0.1;
  const IngestResult all = ingest(o, {});
  EXPECT_EQ(all.report.capped + all.report.thinned, 0);
  o.tenant_cap = 120;
  o.mix = "code=0.5,chat=0.5";
  const IngestResult done = ingest(o, {});
  const DataAudit audit = data_audit(o.out, target);
  const auto& train = audit.stats.domains.at("train");
  EXPECT_EQ(train.at("code").rows, train.at("chat").rows);
  EXPECT_EQ(audit.stats.splits.at("holdout").rows, 40);
  EXPECT_GT(done.report.capped, 100);
  EXPECT_GT(done.report.thinned, 0);
  EXPECT_EQ(audit.stats.splits.at("train").rows, 360 - done.report.capped - done.report.thinned);
  ASSERT_TRUE(audit.report);
  EXPECT_EQ(to_json(*audit.report), to_json(done.report));
  EXPECT_EQ(audit.report->tenants, 2);
  EXPECT_EQ(audit.report->largest_tenants.at(HeldSalt(salt_file(o.out)).key().tenant("big")), 300);
  EXPECT_EQ(audit.report->sources.at(0).formats, (std::map<std::string, int64_t>{{"text", 400}, {"unknown", 1}}));
  EXPECT_EQ(audit.report->redactions, (std::map<std::string, int64_t>{{"email", 40}}));
  EXPECT_EQ(audit.report->redacted_records, 40);
  EXPECT_TRUE(audit.searched);
  EXPECT_TRUE(audit.finds.empty());
  // The report must not contain the names of tenants.
  EXPECT_EQ(slurp(s / "out" / kIngestReportFile).find("\"big\""), std::string::npos);
  const std::string table = to_table(audit);
  for (const char* part : {"tenants         2", "formats         text 400, unknown 1", "invalid_json 1", "p99",
                           "left in text    none", "redacted rows   40 of 400"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  o.mix = "law=1";
  EXPECT_THROW(ingest(o, {}), Error);
}

TEST(Audit, FindsWhatWasNotRedacted) {
  const Scratch s;
  const fs::path target = make_toy_target(s / "target");
  IngestOptions o = ingest_options(s.write("t.jsonl", traffic(20)), target, s / "out");
  o.redact = false;
  ingest(o, {});
  const DataAudit audit = data_audit(o.out, target);
  EXPECT_EQ(audit.finds, (std::map<std::string, int64_t>{{"email", 2}}));
  EXPECT_EQ(audit.rows_with_finds, 2);
  EXPECT_EQ(json_of(audit)["remaining"]["rows"], 2);
  EXPECT_TRUE(json_of(data_audit(o.out, ""))["remaining"].is_null());
  EXPECT_THROW(data_audit(o.out, make_toy_target(s / "other", "", false)), Error);
  // A report that was edited is refused; a missing report is not an error.
  Json report = read_json(s / "out" / kIngestReportFile);
  report["accepted"] = 7;
  s.write("out/ingest.json", report.dump());
  EXPECT_THROW(data_audit(o.out, ""), Error);
  fs::remove(s / "out" / kIngestReportFile);
  EXPECT_FALSE(data_audit(o.out, "").report);
}

TEST(Records, AreReadAgainAndReplaceOnlyTheirOwn) {
  const Scratch s;
  IngestOptions o = ingest_options(s.write("t.jsonl", traffic(20)), "", s / "out");
  o.records = true;
  ingest(o, {});
  const std::string first = slurp(s / "out" / "records.jsonl");
  EXPECT_EQ(first.find("a@b.de"), std::string::npos);
  ingest(o, {});  // a second run replaces the output of the first
  IngestOptions again = o;
  again.sources = {(s / "out" / "records.jsonl").string()};
  again.out = (s / "again").string();
  EXPECT_EQ(ingest(again, {}).report.accepted, 20);
  const auto contents = [](const std::string& lines) {
    std::vector<Json> all;
    std::istringstream in(lines);
    for (std::string line; std::getline(in, line);)
      all.push_back(to_json(traffic_record_from_json(Json::parse(line), "line")));
    return all;
  };
  EXPECT_EQ(contents(slurp(s / "again" / "records.jsonl")), contents(first));
  o.mix = "a=1";
  EXPECT_THROW(ingest(o, {}), Error);
  o.mix = "";
  o.records = false;
  EXPECT_THROW(ingest(o, {}), Error);  // shards need a target, and there is none
}

}  // namespace
}  // namespace specdec::data
