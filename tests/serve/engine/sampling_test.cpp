// Tests every sampling option through the whole server, with speculation: compares 200,000 answers per option with the
// distribution that the option defines. Each request is JSON sent over a socket, and the returned answers are counted.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

#include "base/statistics.h"
#include "tests/serve/engine/toy_server.h"

namespace specdec::deploy {
namespace {

using decode::LogitsProcessors;
using decode::toy::Tokens;

// A sampling option: the request fields and the distribution that they define.
struct Option {
  std::string name;
  Json fields;
  SamplingOptions sampling;
  LogitsProcessors rules;
  std::string stop;
  int64_t max_tokens = 3;
  Tokens stop_tokens = {};  // stop tokens in addition to EOS
  // Returns whether the text is a prefix of a text that the grammar accepts.
  std::function<bool(const std::string&)> prefix_of_grammar;
  std::function<bool(const std::string&)> whole_of_grammar;
};

const Tokens kPrompt = {kToyBos, 0, 1};  // "ab"

std::string letters(const Tokens& answer) {
  std::string text;
  for (const int32_t t : answer)
    if (t < 4) text += static_cast<char>('a' + t);
  return text;
}

// Adds to `out` the probability of every answer that begins with `answer`, by recursion over the next token.
void walk(const Option& o, const decode::toy::Model::Logits& logits, Tokens answer, double probability,
          std::map<Tokens, double>& out) {
  const auto& ends = o.stop_tokens;
  const size_t stop_at = o.stop.empty() ? std::string::npos : letters(answer).rfind(o.stop);
  const bool stopped =
      (stop_at != std::string::npos && static_cast<int64_t>(stop_at + o.stop.size()) > o.rules.min_tokens) ||
      (!answer.empty() && std::find(ends.begin(), ends.end(), answer.back()) != ends.end());
  if (stopped || static_cast<int64_t>(answer.size()) == o.max_tokens || (!answer.empty() && answer.back() == kToyEos)) {
    out[answer] += probability;
    return;
  }
  Tokens context = kPrompt;
  context.insert(context.end(), answer.begin(), answer.end());
  std::vector<float> row(kToyVocab);
  logits(context, row);
  decode::toy::apply_reference(o.rules, context, kPrompt.size(), row);
  if (o.prefix_of_grammar)
    for (int32_t t = 0; t < kToyVocab; ++t) {
      Tokens next = answer;
      next.push_back(t);
      if (!(t == kToyEos ? o.whole_of_grammar(letters(answer)) : o.prefix_of_grammar(letters(next))))
        row[static_cast<size_t>(t)] = -std::numeric_limits<float>::infinity();
    }
  std::vector<int32_t> scratch;
  decode::distribution(row, o.sampling, row, scratch);
  for (int32_t t = 0; t < kToyVocab; ++t) {
    if (!(row[static_cast<size_t>(t)] > 0)) continue;
    answer.push_back(t);
    walk(o, logits, answer, probability * row[static_cast<size_t>(t)], out);
    answer.pop_back();
  }
}

// Returns whether the text is a prefix of a match of (a|b)+c?: letters a and b, then at most one c.
bool ab_then_c(const std::string& text) {
  const size_t run = text.find_first_not_of("ab");
  return run == std::string::npos || (run > 0 && run + 1 == text.size() && text[run] == 'c');
}

std::vector<Option> options() {
  std::vector<Option> all;
  all.reserve(32);  // keeps references to its elements valid
  const auto add = [&all](const std::string& name, Json fields) -> Option& {
    all.push_back({name, std::move(fields), {}, {}, "", 3, {}, {}, {}});
    return all.back();
  };
  add("temperature", {{"temperature", 1.5}}).sampling.temperature = 1.5;
  add("top_k, top_p and min_p", {{"top_k", 3}, {"top_p", 0.9}, {"min_p", 0.1}}).sampling = {
      .top_k = 3, .top_p = 0.9, .min_p = 0.1};
  add("presence_penalty", {{"presence_penalty", 1.7}}).rules.presence_penalty = 1.7;
  add("frequency_penalty", {{"frequency_penalty", -1.1}}).rules.frequency_penalty = -1.1;
  add("repetition_penalty", {{"repetition_penalty", 1.6}}).rules.repetition_penalty = 1.6;
  add("logit_bias", {{"logit_bias", {{"0", 1.25}, {"5", -2}}}}).rules.bias = {{0, 1.25f}, {5, -2.f}};
  add("bad_words", {{"bad_words", {"ba", "d"}}}).rules.bad_words = {{1, 0}, {3}};
  add("stop", {{"stop", {"cb"}}}).stop = "cb";
  add("stop_token_ids", {{"stop_token_ids", {2, 0}}}).stop_tokens = {2, 0};
  add("allowed_token_ids", {{"allowed_token_ids", {5, 1, 2}}}).rules.allowed_ids = {1, 2, 5};
  Option& minimum = add("min_tokens", {{"min_tokens", 2}, {"stop_token_ids", {1}}, {"stop", {"c"}}});
  minimum.rules.min_tokens = 2;
  minimum.rules.stop_ids = {kToyEos, 1};
  minimum.stop_tokens = {1};
  minimum.stop = "c";
  add("max_tokens 1", {{"max_tokens", 1}}).max_tokens = 1;
  add("max_tokens 2", {{"max_tokens", 2}}).max_tokens = 2;
  add("speculative false", {{"speculative", false}});
  Option& regex = add("guided_regex", {{"guided_regex", "(a|b)+c?"}});
  regex.prefix_of_grammar = ab_then_c;
  regex.whole_of_grammar = [](const std::string& text) { return !text.empty(); };
  Option& together = add("all together", {{"temperature", 0.8},
                                          {"top_p", 0.95},
                                          {"presence_penalty", 0.6},
                                          {"frequency_penalty", 0.4},
                                          {"repetition_penalty", 1.2},
                                          {"logit_bias", {{"1", 0.5}}},
                                          {"bad_words", {"bb"}},
                                          {"stop", {"aa"}},
                                          {"allowed_token_ids", {0, 1, 5}},
                                          {"min_tokens", 1},
                                          {"guided_regex", "(a|b)+c?"},
                                          {"logprobs", 1}});
  together.sampling = {.temperature = 0.8, .top_p = 0.95};
  together.rules.presence_penalty = 0.6;
  together.rules.frequency_penalty = 0.4;
  together.rules.repetition_penalty = 1.2;
  together.rules.bias = {{1, 0.5f}};
  together.rules.bad_words = {{1, 1}};
  together.rules.allowed_ids = {0, 1, 5};
  together.rules.min_tokens = 1;
  together.rules.stop_ids = {kToyEos};
  together.stop = "aa";
  together.prefix_of_grammar = regex.prefix_of_grammar;
  together.whole_of_grammar = regex.whole_of_grammar;
  return all;
}

// Returns the p-value of Pearson's chi-square test; answers with fewer than 5 expected counts are merged.
double p_value_of(const std::map<Tokens, int64_t>& counts, const std::map<Tokens, double>& expected, int64_t n) {
  double statistic = 0, rest_expected = 0, rest_seen = 0;
  int cells = 0;
  for (const auto& [answer, probability] : expected) {
    const double want = probability * static_cast<double>(n);
    const auto it = counts.find(answer);
    const double seen = it == counts.end() ? 0 : static_cast<double>(it->second);
    if (want < 5) {
      rest_expected += want;
      rest_seen += seen;
      continue;
    }
    statistic += (seen - want) * (seen - want) / want;
    ++cells;
  }
  if (rest_expected > 0) {
    statistic += (rest_seen - rest_expected) * (rest_seen - rest_expected) / rest_expected;
    ++cells;
  }
  return cells > 1 ? chi_square_p_value(statistic, cells - 1) : 1.0;
}

// Counts answers by their token ids. Searches the text instead of parsing JSON, because there are millions of answers.
void count_answers(const std::string& body, std::map<Tokens, int64_t>& counts, int64_t& n) {
  static const std::string kKey = "\"token_ids\":[";
  for (size_t at = body.find(kKey); at != std::string::npos; at = body.find(kKey, at)) {
    Tokens ids;
    // Each token id has one digit.
    for (at += kKey.size(); body[at] != ']'; ++at)
      if (body[at] != ',') ids.push_back(body[at] - '0');
    ++counts[ids];
    ++n;
  }
}

TEST(SamplingThroughTheServer, EveryOptionHasTheDistributionOfItsDefinition) {
  constexpr int64_t kPerRequest = 128, kSamples = 200 * 1000;
  ToyServer token({2, VerifyRule::kToken, kPerRequest}), block({3, VerifyRule::kBlock, kPerRequest}),
      coupled({3, VerifyRule::kCoupled, kPerRequest});
  ToyServer tree({2, VerifyRule::kToken, kPerRequest, false, {2, 2}}),
      traversal({2, VerifyRule::kBlock, kPerRequest, false, {3, 1}}),
      drawn({2, VerifyRule::kTarget, kPerRequest, false, {2, 1}}),
      suffix({-1, VerifyRule::kBlock, kPerRequest, false, {}, true});
  size_t turn = 0;
  for (const Option& option : options()) {
    ToyServer& server = *std::array{&token, &block, &coupled, &tree, &traversal, &drawn, &suffix}[turn++ % 7];
    server.hang_up();  // the server closes an idle connection while the other servers run their options
    std::map<Tokens, double> expected;
    walk(option, toy_logits(21), {}, 1, expected);
    std::map<Tokens, int64_t> counts;
    int64_t n = 0;
    for (int64_t seed = 1; n < kSamples && !::testing::Test::HasFailure(); ++seed) {
      Json body = {{"prompt", {kToyBos, 0, 1}},
                   {"max_tokens", 3},
                   {"n", kPerRequest},
                   {"seed", 1000 * static_cast<int64_t>(turn) + seed},
                   {"return_token_ids", true}};
      body.update(option.fields);
      const Response r = server.ask(body);
      ASSERT_EQ(r.status, 200) << option.name << ": " << r.body;
      count_answers(r.body, counts, n);
    }
    for (const auto& [answer, count] : counts)
      EXPECT_TRUE(expected.contains(answer)) << option.name << ": " << letters(answer) << " cannot be";
    EXPECT_GE(p_value_of(counts, expected, n), 1e-4) << option.name << " after " << n;
  }
}

// 64 equal prompts in one request without a seed must be as random as 64 requests: any two answers are independent, and
// the number of answers with a given token varies as much as for independent draws. The server takes its seeds from the
// system, so each of the three comparisons below fails by chance once in a million runs.
TEST(SamplingThroughTheServer, PromptsOfOneRequestAreAnsweredIndependently) {
  constexpr int64_t kPrompts = 64, kRequests = 600;
  constexpr double kErrorRate = 1e-6;
  ToyServer server({2, VerifyRule::kToken, kPrompts});
  Option option;
  option.max_tokens = 1;
  std::map<Tokens, double> single, pairs;
  walk(option, toy_logits(21), {}, 1, single);
  for (const auto& [first, p] : single)
    for (const auto& [second, q] : single) pairs[{first[0], second[0]}] = p * q;
  const auto [likeliest, p] =
      *std::max_element(single.begin(), single.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::map<Tokens, int64_t> near, far;
  double spread = 0;
  const Json body = {{"prompt", std::vector<Tokens>(kPrompts, kPrompt)}, {"max_tokens", 1}, {"return_token_ids", true}};
  for (int64_t request = 0; request < kRequests; ++request) {
    const Json choices = server.complete(body)["choices"];
    ASSERT_EQ(choices.size(), static_cast<size_t>(kPrompts));
    Tokens drawn;
    for (const Json& choice : choices) drawn.push_back(choice["token_ids"][0].get<int32_t>());
    for (size_t i = 0; i < drawn.size(); i += 2) ++near[{drawn[i], drawn[i + 1]}];
    for (size_t i = 0; i < drawn.size() / 2; ++i) ++far[{drawn[i], drawn[i + drawn.size() / 2]}];
    const auto count = static_cast<double>(std::count(drawn.begin(), drawn.end(), likeliest[0]));
    spread += (count - kPrompts * p) * (count - kPrompts * p) / (kPrompts * p * (1 - p));
  }
  EXPECT_GE(p_value_of(near, pairs, kRequests * kPrompts / 2), kErrorRate);
  EXPECT_GE(p_value_of(far, pairs, kRequests * kPrompts / 2), kErrorRate);
  const double above = chi_square_p_value(spread, kRequests);
  EXPECT_GE(std::min(above, 1 - above), kErrorRate / 2) << "spread " << spread << " of about " << kRequests;
}

// If a sampling option is missing in the requests, the comparison with its distribution must fail.
TEST(SamplingThroughTheServer, AMissingOptionIsFound) {
  ToyServer server({2, VerifyRule::kToken});
  Option option;
  option.rules.presence_penalty = 0.3;
  std::map<Tokens, double> expected;
  walk(option, toy_logits(21), {}, 1, expected);
  std::map<Tokens, int64_t> counts;
  for (int64_t seed = 1; seed <= 160; ++seed)
    for (const Json& choice : server.complete({{"prompt", {kToyBos, 0, 1}},
                                               {"max_tokens", 3},
                                               {"n", 128},
                                               {"seed", seed},
                                               {"return_token_ids", true}})["choices"])
      ++counts[choice["token_ids"].get<Tokens>()];
  EXPECT_LT(p_value_of(counts, expected, 160 * 128), 1e-9);
}

}  // namespace
}  // namespace specdec::deploy
