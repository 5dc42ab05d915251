#include "deploy/serve/schedule/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "deploy/serve/api/api.h"

namespace specdec::deploy {
namespace {

// Parses the text exposition format strictly: only HELP, TYPE and samples of declared families are allowed.
std::map<std::string, double> parse(const std::string& text) {
  std::map<std::string, double> samples;
  std::map<std::string, std::string> types;
  const std::regex help(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) .+)"),
      type(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram))");
  const std::regex sample(
      R"(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-z_]+="[^"\n]*"(,[a-z_]+="[^"\n]*")*\})? (-?[0-9.e+-]+|NaN|\+Inf))");
  std::istringstream lines(text);
  std::string line;
  std::smatch m;
  while (std::getline(lines, line)) {
    if (std::regex_match(line, m, help)) continue;
    if (std::regex_match(line, m, type)) {
      EXPECT_TRUE(types.emplace(m[1], m[2]).second) << "declared twice: " << line;
      continue;
    }
    if (!std::regex_match(line, m, sample)) {
      ADD_FAILURE() << "malformed: " << line;
      continue;
    }
    std::string family = m[1];
    for (const char* suffix : {"_bucket", "_sum", "_count"})
      if (family.ends_with(suffix) && types.count(family.substr(0, family.size() - std::string(suffix).size())))
        family.resize(family.size() - std::string(suffix).size());
    EXPECT_TRUE(types.count(family)) << "undeclared: " << line;
    EXPECT_TRUE(samples.emplace(std::string(m[1]) + std::string(m[2]), std::stod(m[4])).second) << "twice: " << line;
  }
  EXPECT_TRUE(text.ends_with('\n'));
  return samples;
}

StepResult step(int drafted, int accepted, std::vector<double> overlaps) {
  StepResult r;
  r.drafted = drafted;
  r.accepted = accepted;
  r.overlaps = std::move(overlaps);
  r.decision.k = drafted;
  r.emitted.assign(static_cast<size_t>(accepted) + 1, 7);
  return r;
}

TEST(Metrics, CountsWhatTheContractDefines) {
  Metrics m;
  m.set_info({{"toy"}, "target-fp", "draft-fp", ""});
  m.step(step(3, 1, {0.5, 0.25}));  // reaches positions 0 and 1, accepts only position 0
  m.step(step(2, 2, {0.75, 1.0}));  // reaches and accepts both positions
  m.step(step(1, 0, {0.125}));
  StepResult plain = step(0, 0, {});  // K = 0
  plain.decision.plain = decode::PlainReason::kDoesNotPay;
  m.step(plain);
  m.batch(4, 1.5, {0.5, 0.25, 1.0, 0.125, 2});
  m.batch(2, 2.0, {1.5, 0.75, 2.0, 0.25, 2});
  m.started(11);
  m.caches({0.5, 100, 64});
  m.caches({0.25, 120, 64});
  m.first_token(0.3);
  m.tokens(4, 0.08);
  m.generated(2);
  m.generated(3);
  ChoiceResult answer{FinishReason::kLength, 5, {}, {}};
  answer.counts.add_step(2, 1, {0.5, 0.75});
  m.finished(answer, {"", "code"}, 1.5);
  m.replied("/v1/completions", 200);
  m.record_lost();
  auto s = parse(m.text(3, 2, 9));
  const std::string d = "specdec:spec_decode_";
  EXPECT_EQ(s[d + "num_drafts_total"], 3);
  EXPECT_EQ(s[d + "num_plain_steps_total{reason=\"does_not_pay\"}"], 1);
  EXPECT_EQ(s[d + "num_plain_steps_total{reason=\"request\"}"], 0) << "every reason has a series";
  for (const int k : {0, 1, 2, 3}) EXPECT_EQ(s[d + "num_steps_total{k=\"" + std::to_string(k) + "\"}"], 1);
  EXPECT_EQ(s[d + "num_draft_tokens_total"], 6);
  EXPECT_EQ(s[d + "num_accepted_tokens_total"], 3);
  const auto at = [&](const std::string& name, int i) {
    return s.at(d + name + "_per_pos_total{position=\"" + std::to_string(i) + "\"}");
  };
  EXPECT_EQ(at("num_draft_tokens", 0), 3);
  EXPECT_EQ(at("num_draft_tokens", 1), 2);
  EXPECT_EQ(at("num_draft_tokens", 2), 1);
  EXPECT_EQ(at("num_reached_tokens", 0), 3);
  EXPECT_EQ(at("num_reached_tokens", 1), 2);
  EXPECT_FALSE(s.count(d + "num_reached_tokens_per_pos_total{position=\"2\"}")) << "never reached";
  EXPECT_EQ(at("num_accepted_tokens", 0), 2);
  EXPECT_EQ(at("num_accepted_tokens", 1), 1);
  EXPECT_EQ(at("num_accepted_tokens", 2), 0);
  EXPECT_EQ(at("overlap_sum", 0), 1.375);
  EXPECT_EQ(at("overlap_sum", 1), 1.25);
  EXPECT_EQ(s[d + "k"], 2.0);
  EXPECT_EQ(s["specdec:inter_token_seconds_count"], 4);
  EXPECT_NEAR(s["specdec:inter_token_seconds_sum"], 0.08, 1e-12);
  EXPECT_EQ(s["specdec:domain_reached_tokens_total{domain=\"code\"}"], 2);
  EXPECT_EQ(s["specdec:domain_overlap_sum_total{domain=\"code\"}"], 1.25);
  EXPECT_EQ(s["specdec:generation_tokens_total"], 2 + 3) << "the scheduler counts them after the cut";
  EXPECT_EQ(s["specdec:stage_seconds_total{stage=\"draft\"}"], 0.75);
  EXPECT_EQ(s["specdec:stage_seconds_total{stage=\"verify\"}"], 2.0);
  EXPECT_EQ(s["specdec:draft_failures_total"], 2);
  EXPECT_EQ(s["specdec:steps_total"], 2);
  EXPECT_EQ(s["specdec:batch_size_sum"], 6);
  EXPECT_EQ(s["specdec:num_requests_waiting"], 3);
  EXPECT_EQ(s["specdec:num_requests_running"], 2);
  EXPECT_EQ(s["specdec:connections"], 9);
  EXPECT_EQ(s["specdec:prompt_tokens_total"], 11);
  EXPECT_EQ(s["specdec:kv_cache_usage_perc"], 0.25);
  EXPECT_EQ(s["specdec:prefix_cache_queries_total"], 120);
  EXPECT_EQ(s["specdec:prefix_cache_hits_total"], 64);
  EXPECT_EQ(s["specdec:answers_finished_total{reason=\"length\"}"], 1);
  EXPECT_EQ(s["specdec:requests_total{route=\"/v1/completions\",status=\"200\"}"], 1);
  EXPECT_EQ(s["specdec:records_lost_total"], 1);
  EXPECT_EQ(s["specdec:info{draft=\"draft-fp\",package=\"\",target=\"target-fp\"}"], 1);
}

// A pass takes 1 s for the draft, and for the target 4 s at K = 0 and 6 s at K = 2. With overlaps of 0.5 the expected
// number of tokens per step is 1.75 at K = 2.
DepthEvidence basis(const std::string& draft, int k) { return {draft, 8, k, 1.0, {4, 5, 6}, {0.5, 0.5}}; }

TEST(Metrics, WhyKIsWhatItIs) {
  Metrics m;
  StepResult probe = step(2, 0, {0.1}), stopped = step(1, 1, {0.9});
  probe.decision.probe = true;
  stopped.decision = {4, {}, false, true};
  stopped.in_round = true;
  m.step(probe);
  m.step(stopped);
  m.batch(8, 1.5, {}, {basis("one", 2), basis("two", 0)});
  const auto s = parse(m.text(0, 0, 0));
  EXPECT_EQ(s.at("specdec:spec_decode_num_probes_total"), 1);
  EXPECT_EQ(s.at("specdec:spec_decode_num_early_stops_total"), 1);
  EXPECT_EQ(s.at("specdec:spec_decode_num_round_steps_total"), 1);
  EXPECT_EQ(s.at("specdec:spec_decode_num_steps_total{k=\"4\"}"), 1) << "what was chosen, not what was drafted";
  EXPECT_EQ(s.at("specdec:spec_decode_prevailing_k{draft=\"one\"}"), 2);
  EXPECT_EQ(s.at("specdec:draft_pass_seconds{draft=\"one\"}"), 1);
  EXPECT_EQ(s.at("specdec:verify_pass_seconds{k=\"0\"}"), 4);
  EXPECT_EQ(s.at("specdec:verify_pass_seconds{k=\"2\"}"), 6);
  EXPECT_EQ(s.at("specdec:expected_tokens_per_second{draft=\"one\",k=\"plain\"}"), 2);
  EXPECT_EQ(s.at("specdec:expected_tokens_per_second{draft=\"one\",k=\"prevailing\"}"), 8 * 1.75 / (2 * 1 + 6));
  EXPECT_EQ(s.at("specdec:expected_tokens_per_second{draft=\"two\",k=\"prevailing\"}"), 2);
}

TEST(Metrics, DraftsThatAreGoneAreForgotten) {
  Metrics m;
  for (int i = 0; i < 40; ++i) {
    StepResult r = step(1, 1, {0.5});
    r.draft = "draft" + std::to_string(i);
    m.step(r);
    m.batch(1, 1, {}, {basis(r.draft, 1)});
  }
  std::set<std::string> names;
  for (const auto& [name, value] : parse(m.text(0, 0, 0)))
    if (const size_t at = name.find("draft=\"draft"); at != std::string::npos)
      names.insert(name.substr(at + 7, name.find('"', at + 7) - at - 7));
  EXPECT_EQ(names.size(), Metrics::kDrafts);
  EXPECT_TRUE(names.contains("draft39") && names.contains("draft32") && !names.contains("draft31"));
}

// The server must export every metric whose name the dashboard uses.
TEST(Metrics, TheDashboardAsksForWhatThereIs) {
  Metrics m;
  m.set_info({{"toy"}, "target-fp", "draft-fp", ""});
  StepResult r = step(2, 1, {0.5, 0.25});
  r.draft = "one";
  r.shadow = "two";
  r.shadow_overlaps = {0.5, 0.5};
  m.step(r);
  m.batch(1, 2, {}, {basis("one", 2)});
  m.tokens(1, 0.01);
  m.first_token(0.1);
  ChoiceResult answer{FinishReason::kLength, 5, {}, {}};
  answer.counts.add_step(2, 1, {0.5, 0.75});
  m.finished(answer, {"", "code"}, 1.5);
  const std::string page = kDashboardHtml, text = m.text(0, 0, 0);
  const std::regex asked(R"re(\b([PD]) \+ "([a-z_]*[a-z])")re");
  size_t names = 0;
  for (auto it = std::sregex_iterator(page.begin(), page.end(), asked); it != std::sregex_iterator(); ++it, ++names) {
    const std::string name = ((*it)[1] == "P" ? "specdec:" : "specdec:spec_decode_") + std::string((*it)[2]);
    EXPECT_TRUE(text.find("\n" + name + "{") != std::string::npos ||
                text.find("\n" + name + " ") != std::string::npos ||
                text.find("\n" + name + "_bucket{") != std::string::npos)
        << name;
  }
  EXPECT_GT(names, 30u);
}

TEST(Metrics, PositionsAreFoldedSoThatSeriesStayFew) {
  Metrics m;
  const int k = static_cast<int>(Metrics::kPositions) + 20;
  m.step(step(k, k, std::vector<double>(static_cast<size_t>(k), 1.0)));
  const auto s = parse(m.text(0, 0, 0));
  const std::string last = "{position=\"" + std::to_string(Metrics::kPositions - 1) + "\"}";
  EXPECT_EQ(s.at("specdec:spec_decode_num_reached_tokens_per_pos_total" + last), 21);
  size_t positions = 0;
  size_t ks = 0;
  for (const auto& [name, value] : s) {
    positions += name.starts_with("specdec:spec_decode_num_reached");
    ks += name.starts_with("specdec:spec_decode_num_steps_total");
  }
  EXPECT_EQ(positions, Metrics::kPositions);
  EXPECT_EQ(ks, 1u);
  EXPECT_EQ(s.at("specdec:spec_decode_num_steps_total{k=\"" + std::to_string(Metrics::kPositions) + "\"}"), 1);
}

}  // namespace
}  // namespace specdec::deploy
