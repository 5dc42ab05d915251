// Sends requests with all combinations of options, K, verification rule, grammar and n through the whole server. No
// request may fail, and every answer must obey its options.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <regex>
#include <set>

#include "tests/serve/engine/toy_server.h"

namespace specdec::deploy {
namespace {

using decode::toy::Tokens;

// Named sets of request fields that are sent together.
std::vector<std::pair<std::string, Json>> option_sets() {
  return {
      {"none", Json::object()},
      {"cuts", {{"temperature", 0.7}, {"top_k", 4}, {"top_p", 0.9}, {"min_p", 0.05}}},
      {"penalties", {{"presence_penalty", 0.5}, {"frequency_penalty", 0.5}, {"repetition_penalty", 1.3}}},
      {"bias", {{"logit_bias", {{"2", -100}, {"0", 2}}}}},
      {"bad words", {{"bad_words", {"ab", "c"}}}},
      {"stop", {{"stop", {"ba", "dd"}}}},
      {"stop tokens", {{"stop_token_ids", {2}}}},
      {"stop tokens, shown", {{"stop_token_ids", {1, 2}}, {"stop", {"ad"}}, {"include_stop_str_in_output", true}}},
      {"minimum", {{"min_tokens", 5}, {"stop_token_ids", {0}}, {"stop", {"b"}}}},
      {"allowed", {{"allowed_token_ids", {0, 3, kToyEos, 2}}}},
      {"logprobs", {{"logprobs", 3}, {"echo", true}}},
      {"short", {{"max_tokens", 1}}},
      {"shorter than K", {{"max_tokens", 3}, {"logprobs", 0}}},
      {"opted out", {{"speculative", false}}},
      {"all",
       {{"temperature", 0.9},
        {"top_p", 0.97},
        {"presence_penalty", 0.3},
        {"repetition_penalty", 1.1},
        {"logit_bias", {{"1", 0.7}}},
        {"bad_words", {"cc"}},
        {"allowed_token_ids", {0, 1, 2, 3, kToyEos}},
        {"min_tokens", 1},
        {"stop", {"abab"}},
        {"logprobs", 2},
        {"echo", true},
        {"max_tokens", 9}}},
  };
}

float target_logprob(const Tokens& text, size_t at) {
  std::vector<float> row(kToyVocab);
  toy_logits(21)(std::span<const int32_t>(text).first(at), row);
  double total = 0;
  for (const float l : row) total += std::exp(static_cast<double>(l));
  return static_cast<float>(row[static_cast<size_t>(text[at])] - std::log(total));
}

void check_logprobs(const Json& body, const Json& choice, const Tokens& prompt, const std::string& what) {
  if (!body.contains("logprobs")) {
    EXPECT_TRUE(choice["logprobs"].is_null()) << what;
    return;
  }
  const Json& logprobs = choice["logprobs"];
  const bool echo = body.value("echo", false);
  Tokens text = prompt;
  const Tokens answer = choice["token_ids"].get<Tokens>();
  text.insert(text.end(), answer.begin(), answer.end());
  const size_t first = echo ? 0 : prompt.size();
  ASSERT_EQ(logprobs["token_logprobs"].size(), text.size() - first) << what;
  for (size_t i = first; i < text.size(); ++i) {
    const Json& found = logprobs["token_logprobs"][i - first];
    if (i == 0)
      EXPECT_TRUE(found.is_null()) << what;
    else
      EXPECT_NEAR(found.get<double>(), std::max(target_logprob(text, i), -9999.f), 1e-4) << what << ", token " << i;
  }
  EXPECT_EQ(logprobs["top_logprobs"].is_null(), body["logprobs"] == 0) << what;
}

// Checks that the answer ends where its stop strings, stop tokens and min_tokens require, and that it shows the stop
// string or token only if requested.
void check_end(const Json& body, const std::string& text, const Tokens& ids, const std::string& reason,
               const std::string& what) {
  const bool shown = body.value("include_stop_str_in_output", false);
  const auto least = static_cast<size_t>(body.value("min_tokens", 0));
  std::set<int32_t> ends = {kToyEos};
  for (const Json& id : body.value("stop_token_ids", Json::array())) ends.insert(id.get<int32_t>());
  EXPECT_GE(ids.size(), least) << what;
  bool stopped = ends.contains(ids.back());
  for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_FALSE(ends.contains(ids[i])) << what << ": token " << i;
  EXPECT_FALSE(stopped && ids.size() <= least) << what;
  std::string all;  // each letter is one token
  for (const int32_t id : ids) all += id < 4 ? std::string(1, static_cast<char>('a' + id)) : "";
  std::string expected = stopped && ids.back() < 4 && !shown ? all.substr(0, all.size() - 1) : all;
  for (const Json& stop : body.value("stop", Json::array())) {
    const std::string word = stop;
    for (size_t at = expected.find(word); at != std::string::npos; at = expected.find(word, at + 1)) {
      if (at + word.size() <= least) continue;  // completes before min_tokens, so it is ignored
      EXPECT_EQ(at + word.size(), all.size()) << what << ": " << all << " goes on after " << word;
      stopped = true;
      expected = shown ? expected : expected.substr(0, at);
      break;
    }
  }
  EXPECT_EQ(text, expected) << what;
  EXPECT_EQ(reason == "stop", stopped) << what;
}

void check_answer(const Json& body, const Json& choice, const std::string& what) {
  const Tokens prompt = {kToyBos, 0, 3};
  const bool echo = body.value("echo", false), grammar = body.contains("guided_regex");
  std::string text = choice["text"];
  const std::string reason = choice["finish_reason"];
  if (echo) {
    EXPECT_TRUE(text.starts_with("ad")) << what;
    text.erase(0, 2);
  }
  EXPECT_TRUE(reason == "stop" || reason == "length") << what << ": " << reason;
  const Tokens ids = choice["token_ids"].get<Tokens>();
  EXPECT_GE(ids.size(), 1u);
  EXPECT_LE(static_cast<int64_t>(ids.size()), body["max_tokens"].get<int64_t>()) << what;
  EXPECT_TRUE(reason == "stop" || static_cast<int64_t>(ids.size()) == body["max_tokens"].get<int64_t>()) << what;
  check_end(body, text, ids, reason, what);
  for (const Json& id : body.contains("allowed_token_ids") ? Json(ids) : Json::array())
    EXPECT_NE(std::find(body["allowed_token_ids"].begin(), body["allowed_token_ids"].end(), id),
              body["allowed_token_ids"].end())
        << what << ": " << id;
  for (const Json& word : body.value("bad_words", Json::array()))
    EXPECT_EQ(text.find(word.get<std::string>()), std::string::npos) << what << ": " << text;
  EXPECT_TRUE(!body.contains("logit_bias") || !body["logit_bias"].contains("2") || text.find('c') == std::string::npos)
      << what;
  if (grammar) {
    static const std::regex whole("(ab?|d)(c|d|a)*"), part("(a|ab|d)?(c|d|a)*");
    EXPECT_TRUE(std::regex_match(text, part)) << what << ": " << text;
    EXPECT_TRUE(ids.back() != kToyEos || std::regex_match(text, whole)) << what << ": " << text;
  }
  check_logprobs(body, choice, prompt, what);
}

TEST(Matrix, EveryCombinationAnswersAndKeepsItsPromises) {
  // Maps option set, grammar and n to the expected text. Greedy text is the same for every K and rule, coupled text for
  // every K.
  std::map<std::string, std::string> fixed;
  struct Shape {
    int k;
    std::vector<int> tree = {};
    bool suffix = false;
  };
  std::vector<Shape> shapes;
  for (int k = 0; k <= 8; ++k) shapes.push_back({k});
  for (const std::vector<int>& tree : {std::vector<int>{3}, {2, 2}, {3, 2, 1}})
    shapes.push_back({static_cast<int>(tree.size()), tree});
  for (const int k : {-1, 2, 8}) shapes.push_back({k, {}, true});
  for (const auto& [k, tree, suffix] : shapes)
    for (const VerifyRule rule : {VerifyRule::kToken, VerifyRule::kBlock, VerifyRule::kTarget, VerifyRule::kCoupled}) {
      ToyServer server({.k = k, .rule = rule, .tree = tree, .suffix = suffix});
      for (const auto& [name, fields] : option_sets())
        for (const bool grammar : {false, true})
          for (const int n : {1, 3})
            for (const bool is_greedy : {false, true}) {
              Json body = {
                  {"prompt", {kToyBos, 0, 3}}, {"max_tokens", 12}, {"n", n}, {"seed", 5}, {"return_token_ids", true}};
              body.update(fields);
              if (is_greedy) body["temperature"] = 0;
              if (grammar) body["guided_regex"] = "(ab?|d)[cda]*";
              const std::string key = name + (grammar ? ", grammar" : "") + ", n=" + std::to_string(n);
              const std::string what = key + ", K=" + std::to_string(k) +
                                       (suffix         ? " and from the text, "
                                        : tree.empty() ? ", "
                                                       : " of a tree, ") +
                                       to_string(rule) + (is_greedy ? ", greedy" : "");
              const Json reply = server.complete(body);
              ASSERT_EQ(reply["choices"].size(), static_cast<size_t>(n)) << what;
              std::string texts;
              for (const Json& choice : reply["choices"]) {
                check_answer(body, choice, what);
                texts += choice["text"].get<std::string>() + "|";
              }
              if (!is_greedy && rule != VerifyRule::kCoupled) continue;
              EXPECT_EQ(fixed.emplace(key + (is_greedy ? ", greedy" : ""), texts).first->second, texts) << what;
            }
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
}

// A seed fixes the text of a request: it may depend neither on the draft nor on K nor on concurrent requests.
TEST(Matrix, ASeedGivesOneText) {
  const Json body = {{"prompt", "ab"}, {"max_tokens", 40}, {"seed", 11}, {"ignore_eos", true}};
  std::set<std::string> texts;
  const auto ask = [&](ToyServer& server, Json fields = Json::object()) {
    fields.update(body);
    texts.insert(server.complete(fields)["choices"][0]["text"].get<std::string>());
  };
  for (const int k : {-1, 0, 1, 4, 8}) {
    ToyServer server({.k = k, .rule = k % 2 == 0 ? VerifyRule::kToken : VerifyRule::kBlock, .coupled_seeds = true});
    ask(server);
    ask(server, {{"speculative", false}});
    ask(server, {{"n", 4}});
    ToyServer from_text({.k = k, .coupled_seeds = true, .suffix = true});
    ask(from_text);
  }
  EXPECT_EQ(texts.size(), 1u);
  ToyServer server({.k = 4, .coupled_seeds = true});
  const Json other = server.complete({{"prompt", "ab"}, {"max_tokens", 40}, {"seed", 12}, {"ignore_eos", true}});
  EXPECT_FALSE(texts.contains(other["choices"][0]["text"].get<std::string>()));
}

TEST(Matrix, EchoWithoutAnAnswerScoresThePrompt) {
  ToyServer server({3, VerifyRule::kToken});
  const Json reply = server.complete({{"prompt", "abc"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 1}});
  const Json& choice = reply["choices"][0];
  EXPECT_EQ(choice["text"], "abc");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(reply["usage"]["completion_tokens"], 0);
  EXPECT_EQ(choice["logprobs"]["tokens"], Json::parse(R"(["<s>","a","b","c"])"));
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json::parse("[0,0,1,2]"));
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_NEAR(choice["logprobs"]["token_logprobs"][3].get<double>(), target_logprob({kToyBos, 0, 1, 2}, 3), 1e-4);
  EXPECT_EQ(server.ask({{"prompt", "abc"}, {"max_tokens", 0}}).status, 400);
  // return_tokens_as_token_ids shows tokens by id instead of by text, because several tokens may have the same text.
  const Json named = server.complete({{"prompt", {kToyBos, 0, 1, 2}},
                                      {"max_tokens", 0},
                                      {"echo", true},
                                      {"logprobs", 3},
                                      {"return_tokens_as_token_ids", true}});
  const Json& ids = named["choices"][0]["logprobs"];
  EXPECT_EQ(ids["tokens"], Json({"token_id:" + std::to_string(kToyBos), "token_id:0", "token_id:1", "token_id:2"}));
  EXPECT_EQ(ids["text_offset"], choice["logprobs"]["text_offset"]);
  EXPECT_EQ(ids["token_logprobs"], choice["logprobs"]["token_logprobs"]);
  EXPECT_TRUE(ids["top_logprobs"][0].is_null());
  ASSERT_GE(ids["top_logprobs"][2].size(), 3u);
  for (const auto& [name, value] : ids["top_logprobs"][2].items()) {
    ASSERT_TRUE(name.starts_with("token_id:")) << name;
    EXPECT_NEAR(value.get<double>(), target_logprob({kToyBos, 0, std::stoi(name.substr(9))}, 2), 1e-4) << name;
  }
}

// text_offset counts characters of the shown text. The decoder strips the first space of that text, whether it belongs
// to the echoed prompt or the answer.
TEST(Matrix, OffsetsAreThoseOfTheText) {
  const Scratch directory;
  testing::write_space_stripping_tokenizer(directory.root());
  Json file = Json::parse(testing::get(directory / "tokenizer.json"));
  file["model"]["vocab"] = {{"▁a", 0}, {"▁", 1}, {"c", 2}, {"<0xC3>", 3}};
  for (const int i : {0, 1}) file["added_tokens"][i]["id"] = i == 0 ? kToyBos : kToyEos;
  file["post_processor"]["special_tokens"]["<s>"]["ids"] = {kToyBos};
  testing::put(directory / "tokenizer.json", file.dump());
  const text::Tokenizer tokenizer(directory.root());
  ToyServer server({.k = 3, .tokenizer = &tokenizer});
  for (const Json& prompt : {Json{kToyBos}, Json{kToyBos, 0}, Json{kToyBos, 1, 0, 2}, Json{kToyBos, 2, 2}})
    for (const bool echo : {false, true})
      for (int64_t seed = 0; seed < 20; ++seed) {
        const Json choice = server.complete({{"prompt", prompt},
                                             {"max_tokens", 8},
                                             {"echo", echo},
                                             {"logprobs", 0},
                                             {"seed", seed},
                                             {"allowed_token_ids", {0, 1, 2}}})["choices"][0];
        const std::string text = choice["text"];
        const Json &tokens = choice["logprobs"]["tokens"], &offsets = choice["logprobs"]["text_offset"];
        std::string joined;
        bool stripped = echo || prompt.size() == 1;  // the next token is the first of the text
        for (size_t i = 0; i < tokens.size(); ++i) {
          const size_t end = i + 1 < tokens.size() ? offsets[i + 1].get<size_t>() : text.size();
          std::string own = tokens[i];
          if (own == "<s>")
            own = "";
          else if (std::exchange(stripped, false) && own.starts_with(' '))
            own.erase(0, 1);
          EXPECT_EQ(offsets[i], joined.size()) << choice;
          EXPECT_EQ(text.substr(joined.size(), end - joined.size()), own) << choice;
          joined += own;
        }
        EXPECT_EQ(joined, text) << choice;
      }
  // A token that ends inside a character counts with its own bytes until the character's text follows.
  const Json cut = server.complete(
      {{"prompt", {kToyBos, 2}}, {"max_tokens", 3}, {"logprobs", 0}, {"allowed_token_ids", {3}}})["choices"][0];
  EXPECT_EQ(cut["text"], "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(cut["logprobs"]["text_offset"], Json({0, 1, 2}));
}

TEST(Matrix, SeveralAnswersReadTheirPromptOnce) {
  ToyServer server({3, VerifyRule::kToken});
  size_t prompt_tokens = 0;
  server.target.before_pass = [&prompt_tokens](std::span<const decode::Extension> extensions) {
    for (const decode::Extension& e : extensions) prompt_tokens += e.num_logits == 0 ? e.tokens.size() : 0;
  };
  const Json reply = server.complete({{"prompt", {"abcdabcd", "dcba"}}, {"n", 6}, {"max_tokens", 5}, {"seed", 2}});
  EXPECT_EQ(reply["choices"].size(), 12u);
  EXPECT_EQ(prompt_tokens, 8u + 4u) << "BOS and letters but the last, of two prompts";
  const Json alone = server.complete({{"prompt", "dcba"}, {"n", 6}, {"max_tokens", 5}, {"seed", 2}});
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(reply["choices"][6 + i]["text"], alone["choices"][i]["text"]);
}

TEST(Matrix, ARequestThatLeavesNoTokenIsA400AndTheServerLives) {
  ToyServer server({3, VerifyRule::kToken});
  for (int i = 0; i < 40; ++i) {  // 40 device failures in a row would end the server
    const Response r = server.ask({{"prompt", "a"},
                                   {"max_tokens", 5},
                                   {"bad_words", {"a", "b", "c", "d"}},
                                   {"guided_regex", "[abcd]+"},
                                   {"temperature", i % 2}});
    EXPECT_EQ(r.status, 400);
    EXPECT_EQ(Json::parse(r.body)["error"]["code"], "no_token_left");
  }
  const Response r = server.ask({{"prompt", "a"}, {"max_tokens", 5}, {"guided_regex", "a[ef]"}});
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(Json::parse(r.body)["error"]["code"], "no_token_left") << "the vocabulary has neither e nor f";
  EXPECT_EQ(server.ask({{"prompt", "a"}, {"max_tokens", 2}}).status, 200);
}

TEST(Matrix, AnAnswerWhoseMasksCostTooMuchEndsWithAnErrorOfItsOwn) {
  ToyOptions options;
  options.masks.seconds = options.masks.seconds_per_mask = 0;
  ToyServer server(options);
  const Json body = {{"prompt", "a"}, {"max_tokens", 5}, {"guided_regex", "[abcd]+"}};
  for (int i = 0; i < 40; ++i) {  // 40 device failures in a row would end the server
    const Response r = server.ask(body);
    EXPECT_EQ(r.status, 400);
    EXPECT_EQ(Json::parse(r.body)["error"]["code"], "grammar_too_costly");
  }
  EXPECT_EQ(server.ask({{"prompt", "a"}, {"max_tokens", 2}}).status, 200);
}

TEST(Matrix, GrammarsThatCannotBeUsedAreRefusedOnTheWayIn) {
  ToyServer server({2, VerifyRule::kToken});
  const auto refused = [&](const Json& fields, const std::string& param) {
    Json body = {{"prompt", "a"}, {"max_tokens", 2}};
    body.update(fields);
    const Response r = server.ask(body);
    EXPECT_EQ(r.status, 400) << body.dump();
    EXPECT_EQ(Json::parse(r.body)["error"]["param"], param) << r.body;
  };
  refused({{"guided_regex", "(a"}}, "guided_regex");
  refused({{"guided_regex", "e+"}}, "guided_regex");  // cannot be written with this vocabulary
  refused({{"guided_json", {{"type", "nothing"}}}}, "guided_json");
  refused({{"guided_json", "{"}}, "guided_json");
  refused({{"response_format",
            {{"type", "json_schema"}, {"json_schema", {{"schema", {{"$ref", "http://example.org/schema.json"}}}}}}}},
          "response_format.json_schema");
  EXPECT_EQ(server.complete({{"prompt", "a"},
                             {"max_tokens", 9},
                             {"guided_choice", {"ab", "dc"}},
                             {"seed", 1}})["choices"][0]["finish_reason"],
            "stop");
}

}  // namespace
}  // namespace specdec::deploy
