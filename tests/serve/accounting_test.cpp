// Tests that the server's token counters equal the number of tokens that clients received.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/serve/running_server.h"

namespace specdec::deploy {
namespace {

// Returns the value of a series without labels, -1 if there is no such series.
int64_t counted(Running& s, const std::string& name) {
  const std::string text = "\n" + s.ask(get("/metrics")).body;
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stoll(text.substr(at + name.size() + 2));
}

// The last step may emit tokens after the end of the answer. No client receives them, so no counter includes them.
TEST(Accounting, TokensAfterTheEndAreCountedNowhere) {
  Running s;
  s.start();
  // The answer takes two steps of four tokens: a, b, c, d, then e, EOS and two tokens after the end.
  const Json reply = s.complete("say:abcde", R"("max_tokens":20,"seed":3,"include_metrics":true)");
  ASSERT_EQ(reply["choices"][0]["text"], "abcde");
  ASSERT_EQ(s.runner.steps(), 2u);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 6);
  EXPECT_EQ(counted(s, "specdec:generation_tokens_total"), 6);
  EXPECT_EQ(counted(s, "specdec:inter_token_seconds_count"), 2) << "of the second step";
  EXPECT_EQ(counted(s, "specdec:spec_decode_num_accepted_tokens_total"), 6) << "before the cut";
  EXPECT_EQ(reply["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"], 6) << "before the cut, too";
}

// Eight clients receive 10,000 streamed answers that end in all possible ways. The counters and each `usage` must agree
// with what the clients received.
TEST(Accounting, AfterABurstTheCountersAreWhatTheClientsGot) {
  Config setup;
  setup.options.max_batch = 8;
  Running s(setup);
  s.model.reasoning = {"<think>", "</think>"};
  s.start();
  const std::vector<std::string> fields = {"",
                                           R"("max_tokens":7)",
                                           R"("stop":["5"])",
                                           R"("stop_token_ids":[53])",
                                           R"("ignore_eos":true,"max_tokens":30)",
                                           R"("n":3,"max_tokens":9)",
                                           R"("stop":["5"],"min_tokens":9)"};
  constexpr int kClients = 8, kAnswers = 1350;
  std::atomic<int64_t> used{0}, got{0}, streamed{0};
  const auto client = [&](int number) {
    Client connection(s.port);
    for (int i = 0; i < kAnswers; ++i) {
      const bool is_chat = i % 2 == 0, stream = i % 17 != 0;
      const std::string said = "say:" + std::string(i % 5 == 0 ? "<think>a5b</think>\n" : "") + "12345678" +
                               std::string(static_cast<size_t>((number + i) % 11), '9');
      const std::string more = fields[static_cast<size_t>(i) % fields.size()];
      Json body = Json::parse("{" + more + "}");
      if (is_chat)
        body["messages"] = {{{"role", "user"}, {"content", said}}};
      else
        body["prompt"] = said;
      if (!is_chat && !body.contains("max_tokens")) body["max_tokens"] = 40;
      body.update({{"seed", number + i}, {"return_token_ids", true}, {"stream", stream}});
      if (stream) body["stream_options"] = {{"include_usage", true}};
      connection.send(post(is_chat ? "/v1/chat/completions" : "/v1/completions", body.dump()));
      const Response r = connection.read();
      ASSERT_EQ(r.status, 200) << r.body;
      streamed += stream;
      for (const Json& part : stream ? events_of(r.body) : std::vector<Json>{Json::parse(r.body)}) {
        for (const Json& choice : part["choices"])
          got += static_cast<int64_t>(choice.value("token_ids", Json::array()).size());
        if (!part.contains("usage") || part["usage"].is_null()) continue;
        used += part["usage"]["completion_tokens"].get<int64_t>();
      }
    }
  };
  std::vector<std::thread> clients;
  for (int number = 0; number < kClients; ++number) clients.emplace_back(client, number);
  for (std::thread& thread : clients) thread.join();
  EXPECT_GT(streamed, 10000);
  EXPECT_GT(got, 50000);
  EXPECT_EQ(used, got);
  EXPECT_EQ(counted(s, "specdec:generation_tokens_total"), got);
  EXPECT_GT(
      counted(s, "specdec:spec_decode_num_accepted_tokens_total") + counted(s, "specdec:spec_decode_num_drafts_total"),
      0);
}

}  // namespace
}  // namespace specdec::deploy
