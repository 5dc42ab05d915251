// Tests the parts of the API layer that handle token ids: /tokenize and /detokenize, truncated prompts, and tokens that
// end an answer.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/serve/running_server.h"

namespace specdec::deploy {
namespace {

struct TokenServer : ::testing::Test {
  TokenServer() : s(setup()) { s.start(); }
  static Config setup() {
    Config config;
    config.max_context = 40;
    config.limits.long_text_bytes = 1000;
    return config;
  }
  Json ok(const std::string& route, const Json& body) {
    const Response r = s.ask(post(route, body.dump()));
    EXPECT_EQ(r.status, 200) << body << " → " << r.body;
    return Json::parse(r.body, nullptr, false);
  }
  void refused(const std::string& route, const Json& body, const std::string& param) {
    const Response r = s.ask(post(route, body.dump()));
    EXPECT_EQ(r.status, 400) << body << " → " << r.body;
    EXPECT_EQ(Json::parse(r.body)["error"]["param"], param) << r.body;
  }
  // Returns the prompt text that the model received, by requesting "echo".
  Json echoed(Json body) {
    body.update({{"echo", true}});
    if (!body.contains("max_tokens")) body["max_tokens"] = 0;
    return ok("/v1/completions", body);
  }
  Running s;
};

TEST_F(TokenServer, TokenizeListsTheTokens) {
  EXPECT_EQ(ok("/tokenize", {{"prompt", "aé"}}),
            Json({{"count", 4}, {"max_model_len", 40}, {"tokens", {kBos, 'a', 0xC3, 0xA9}}, {"token_strs", nullptr}}));
  const Json bare =
      ok("/tokenize",
         {{"model", "tiny"}, {"prompt", "a b</s>"}, {"add_special_tokens", false}, {"return_token_strs", true}});
  EXPECT_EQ(bare["tokens"], Json({'a', ' ', 'b', kEos}));
  EXPECT_EQ(bare["token_strs"], Json({"a", "Ġ", "b", "</s>"})) << "as in the vocabulary";
  EXPECT_EQ(ok("/tokenize", {{"prompt", ""}})["tokens"], Json({kBos}));
  EXPECT_EQ(ok("/tokenize", {{"prompt", std::string(100, 'x')}})["count"], 101) << "more than the context";
  EXPECT_EQ(ok("/tokenize", {{"prompt", std::string(1000, 'x')}})["count"], 1001);
  refused("/tokenize", {{"prompt", std::string(1001, 'x')}}, "prompt");
  refused("/tokenize", {{"prompt", Json::array({"a"})}}, "prompt");
  EXPECT_EQ(s.ask(post("/tokenize", R"({"prompt":"a","model":"other"})")).status, 404);
}

TEST_F(TokenServer, TokenizeRendersConversations) {
  const Json hi = Json::array({{{"role", "user"}, {"content", "hi"}}, {{"role", "user"}, {"content", "<s>"}}});
  EXPECT_EQ(ok("/tokenize", {{"messages", hi}})["tokens"], Json({'h', 'i', kBos}));
  EXPECT_EQ(ok("/tokenize", {{"messages", hi}, {"add_special_tokens", true}})["tokens"], Json({kBos, 'h', 'i', kBos}));
  refused("/tokenize", {{"messages", {{{"role", "tool"}, {"content", "x"}}}}}, "messages");
  const Json tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
  refused("/tokenize", {{"messages", hi}, {"tools", {tool}}}, "tools");  // this template shows no call syntax
  refused("/tokenize", {{"messages", {{{"role", "user"}, {"content", std::string(1001, 'x')}}}}}, "messages");
}

TEST_F(TokenServer, AddGenerationPromptReachesTheTemplate) {
  Running other(setup());
  text::ChatTemplate talk("{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}", "<s>", "</s>");
  other.model.chat_template = &talk;
  other.start();
  const auto tokens = [&](const std::string& more) {
    const Response r = other.ask(post("/tokenize", R"({"messages":[{"role":"user","content":"a"}])" + more + "}"));
    return Json::parse(r.body)["tokens"];
  };
  EXPECT_EQ(tokens(""), Json({'a', '>'}));
  EXPECT_EQ(tokens(R"(,"add_generation_prompt":false)"), Json({'a'}));
}

TEST_F(TokenServer, DetokenizeGivesTheText) {
  EXPECT_EQ(ok("/detokenize", {{"tokens", {kBos, 'a', 0xC3, 0xA9, kEos}}}), Json({{"prompt", "<s>aé</s>"}}));
  EXPECT_EQ(ok("/detokenize", {{"tokens", Json::array()}})["prompt"], "");
  EXPECT_EQ(ok("/detokenize", {{"tokens", {0xC3}}})["prompt"], "\xEF\xBF\xBD") << "half a character";
  refused("/detokenize", {{"tokens", {1, kVocab}}}, "tokens");
  refused("/detokenize", {{"prompt", "a"}}, "tokens");
  EXPECT_EQ(s.ask(post("/detokenize", R"({"tokens":[1],"model":"other"})")).status, 404);
  EXPECT_NE(s.ask(get("/metrics")).body.find("route=\"/detokenize\",status=\"200\"} 3"), std::string::npos);
}

TEST(TokenRoutes, HoldBytesAndNeedAModel) {
  Config setup;
  setup.limits.held_bytes = 2000;
  Running s(setup);
  EXPECT_EQ(s.ask(post("/tokenize", R"({"prompt":"a"})")).status, 503) << "loading";
  s.start();
  EXPECT_EQ(s.ask(post("/tokenize", R"({"prompt":"a"})")).status, 200);
  const Response large = s.ask(post("/tokenize", Json({{"prompt", std::string(100, 'x')}}).dump()));
  EXPECT_EQ(large.status, 429);
  EXPECT_EQ(Json::parse(large.body)["error"]["code"], "too_many_bytes");
  EXPECT_EQ(s.ask(post("/tokenize", R"({"prompt":"a"})")).status, 200) << "what was refused holds nothing";
}

TEST_F(TokenServer, TruncationKeepsTheLastTokensAndBos) {
  const std::string letters = "abcdefghijklmnopqrstuvwxyz";
  const auto last = [&](const Json& prompt, int64_t kept, Json more = Json::object()) {
    more.update({{"prompt", prompt}, {"truncate_prompt_tokens", kept}});
    const Json reply = echoed(more);
    return std::pair{reply["choices"][0]["text"].get<std::string>(), reply["usage"]["prompt_tokens"].get<int64_t>()};
  };
  EXPECT_EQ(last(letters, 5), (std::pair<std::string, int64_t>{"wxyz", 5})) << "BOS counts, as in vLLM";
  EXPECT_EQ(last(letters, 27), (std::pair<std::string, int64_t>{letters, 27})) << "all of it";
  EXPECT_EQ(last(letters, 39), (std::pair<std::string, int64_t>{letters, 27}));
  EXPECT_EQ(last(letters, 1), (std::pair<std::string, int64_t>{"", 1})) << "BOS alone";
  EXPECT_EQ(last({'a', 'b', 'c'}, 2), (std::pair<std::string, int64_t>{"bc", 2})) << "ids have no BOS of their own";
  const std::string longer = std::string(900, '.') + letters;
  EXPECT_EQ(last(longer, -1), (std::pair{longer.substr(longer.size() - 38), int64_t{39}})) << "less one for an answer";
  EXPECT_EQ(last(longer, -1, {{"max_tokens", 30}}).second, 10) << "less max_tokens";
  const Json reply = ok("/v1/completions", {{"prompt", longer}, {"truncate_prompt_tokens", -1}});
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 24) << "less the 16 tokens that a completion has by default";
  refused("/v1/completions", {{"prompt", std::string(1001, 'x')}, {"truncate_prompt_tokens", -1}}, "prompt");
  refused("/v1/completions", {{"prompt", "a"}, {"truncate_prompt_tokens", 40}}, "truncate_prompt_tokens");
  refused("/v1/completions", {{"prompt", "a"}, {"max_tokens", 30}, {"truncate_prompt_tokens", 11}},
          "truncate_prompt_tokens");
  refused("/v1/completions", {{"prompt", longer}}, "prompt");
  const Json chat = ok("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", longer + "say:hi"}}}},
                                                {"truncate_prompt_tokens", 6}});
  EXPECT_EQ(chat["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(chat["choices"][0]["message"]["content"], "hi");
}

// The record of an answer must contain the truncated prompt, which the model received.
TEST(TruncatedPrompts, AreRecordedAsTheyWereRead) {
  const Scratch dir;
  Config setup;
  setup.options.record_dir = dir / "recorded";
  Running s(setup);
  s.start();
  const auto ask = [&](const std::string& route, const Json& body) {
    EXPECT_EQ(s.ask(post(route, body.dump())).status, 200);
  };
  const Json talk = Json::array({{{"role", "user"}, {"content", "<s>long say:hi"}}});
  ask("/v1/chat/completions", {{"messages", talk}, {"truncate_prompt_tokens", 6}});
  ask("/v1/chat/completions", {{"messages", talk}, {"truncate_prompt_tokens", 100}});
  ask("/v1/completions", {{"prompt", "long say:hi"}, {"truncate_prompt_tokens", 7}});
  s.finish();
  std::vector<Json> records;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "recorded")) {
    if (!entry.path().filename().string().starts_with("traffic-")) continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) records.push_back(Json::parse(line));
  }
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0]["prompt"], "say:hi");
  EXPECT_EQ(records[0]["response"], "hi");
  EXPECT_EQ(records[1]["messages"].size(), 2u);
  EXPECT_EQ(records[2]["prompt"], "say:hi");
}

TEST_F(TokenServer, WhereAnAnswerMayEndIsChecked) {
  const Json reply =
      ok("/v1/completions", {{"prompt", "say:one.two"}, {"stop_token_ids", {'.', '!'}}, {"return_token_ids", true}});
  EXPECT_EQ(reply["choices"][0]["text"], "one");
  EXPECT_EQ(reply["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(reply["choices"][0]["token_ids"], Json({'o', 'n', 'e', '.'}));
  EXPECT_EQ(ok("/v1/completions", {{"prompt", "say:one.two"},
                                   {"stop_token_ids", {'.'}},
                                   {"include_stop_str_in_output", true},
                                   {"ignore_eos", true}})["choices"][0]["text"],
            "one.");
  EXPECT_EQ(ok("/v1/completions",
               {{"prompt", "say:one.two"}, {"stop", "e."}, {"include_stop_str_in_output", true}})["choices"][0]["text"],
            "one.");
  EXPECT_EQ(ok("/v1/completions", {{"prompt", "say:a.b.c"}, {"stop", "."}, {"min_tokens", 2}})["choices"][0]["text"],
            "a.b");
  refused("/v1/completions", {{"prompt", "a"}, {"stop_token_ids", {kVocab}}}, "stop_token_ids");
  refused("/v1/completions", {{"prompt", "a"}, {"allowed_token_ids", {kVocab}}}, "allowed_token_ids");
  refused("/v1/completions", {{"prompt", "a"}, {"max_tokens", 3}, {"min_tokens", 4}}, "min_tokens");
  refused("/v1/completions", {{"prompt", "a"}, {"min_tokens", 17}}, "min_tokens");
}

}  // namespace
}  // namespace specdec::deploy
