#include "deploy/serve/answer/reply.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/json.h"

namespace specdec::deploy {
namespace {

ReplyFrame frame(Endpoint endpoint) {
  ReplyFrame f;
  f.endpoint = endpoint;
  f.id = "x-1";
  f.model = "m";
  f.system_fingerprint = "fp_0123";
  f.created = 1700000000;
  f.prompt_tokens = 5;
  return f;
}

Answer answer(const std::string& text, FinishReason reason = FinishReason::kStop) {
  Answer a;
  a.text.content = text;
  a.token_ids = {1, 2};
  a.result = ChoiceResult{reason, 2, {}, {}};
  a.result->counts.add_step(3, 1, {0.5, 0.5});
  a.result->counts.add_step(3, 3, {0.5, 0.5, 0.5});
  a.result->accepted_histogram = {0, 1, 0, 1};
  return a;
}

Answer piece(const std::string& text, std::vector<int32_t> ids) {
  Answer a;
  a.text.content = text;
  a.token_ids = std::move(ids);
  return a;
}

Json data(const std::string& event) {
  EXPECT_TRUE(event.starts_with("data: ") && event.ends_with("\n\n")) << event;
  return Json::parse(event.substr(6));
}

TEST(Reply, AWholeChatCompletion) {
  ReplyFrame f = frame(Endpoint::kChat);
  EXPECT_EQ(Json::parse(full_reply(f, {answer("hi", FinishReason::kLength)})),
            Json::parse(R"({"id":"x-1","object":"chat.completion","created":1700000000,
    "model":"m","system_fingerprint":"fp_0123","choices":[{"index":0,"logprobs":null,"finish_reason":"length",
    "message":{"role":"assistant","content":"hi","refusal":null}}],
    "usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}})"));
  f.return_token_ids = f.include_metrics = true;
  const Json body = Json::parse(full_reply(f, {answer("hi")}));
  EXPECT_EQ(body["choices"][0]["token_ids"], Json::parse("[1,2]"));
  // The fields of `metrics` have the names that vLLM uses.
  EXPECT_EQ(
      body["metrics"],
      Json::parse(R"({"speculative_decoding":{"mean_acceptance_length":3.0,"draft_acceptance_rate":0.6666666666666666,
    "acceptance_histogram":[0,1,0,1],"num_spec_steps":2,
    "num_accepted_draft_tokens":4,"num_draft_tokens":6,"num_spec_tokens":3}})"));
}

TEST(Reply, SeveralCompletionsShareUsageAndHaveNoMetrics) {
  ReplyFrame f = frame(Endpoint::kCompletions);
  f.include_metrics = true;
  const Json body = Json::parse(full_reply(f, {answer("a"), answer("b")}));
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["choices"][1]["text"], "b");
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
  EXPECT_TRUE(body["metrics"]["speculative_decoding"].is_null());
}

TEST(Reply, StreamEvents) {
  ReplyFrame f = frame(Endpoint::kChat);
  EXPECT_EQ(data(first_event(f, 0))["choices"][0]["delta"], Json::parse(R"({"role":"assistant","content":""})"));
  const Json delta = data(delta_event(f, 1, piece("hi", {7})));
  EXPECT_EQ(delta["object"], "chat.completion.chunk");
  EXPECT_EQ(delta["choices"][0],
            Json::parse(R"({"index":1,"logprobs":null,"finish_reason":null,"delta":{"content":"hi"}})"));
  EXPECT_FALSE(delta.contains("usage"));
  EXPECT_EQ(delta_event(f, 0, piece("", {7})), "");
  EXPECT_EQ(data(finish_event(f, 0, FinishReason::kStop, false))["choices"][0],
            Json::parse(R"({"index":0,"logprobs":null,"finish_reason":"stop","delta":{}})"));
  EXPECT_EQ(usage_event(f, {answer("x")}), "");
  f.include_usage = true;
  f.return_token_ids = true;
  EXPECT_TRUE(data(delta_event(f, 0, piece("", {7})))["usage"].is_null());
  EXPECT_EQ(data(delta_event(f, 0, piece("", {7})))["choices"][0]["token_ids"], Json::parse("[7]"));
  const Json usage = data(usage_event(f, {answer("x")}));
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["total_tokens"], 7);
  EXPECT_FALSE(usage.contains("metrics"));
  const ReplyFrame c = frame(Endpoint::kCompletions);
  EXPECT_EQ(first_event(c, 0), "");
  EXPECT_EQ(data(delta_event(c, 0, piece("t", {})))["choices"][0]["text"], "t");
  EXPECT_EQ(done_event(), "data: [DONE]\n\n");
}

// Makes an answer of three tokens: two that together form one character, and a third that adds no text.
Answer scored() {
  Answer a = answer("é");
  a.logprobs.push_back({"\xc3", 4, -0.5f, {{"\xc3", -0.5f}, {"x", -1.f}}});
  a.logprobs.push_back({"\xa9", 5, -std::numeric_limits<float>::infinity(), {{"y", -0.25f}, {"y", -3.f}}});
  a.logprobs.push_back({"</s>", 5, std::nullopt, {}});
  return a;
}

TEST(Reply, LogprobsOfAChat) {
  ReplyFrame f = frame(Endpoint::kChat);
  f.logprobs = 2;
  const Json logprobs = Json::parse(full_reply(f, {scored()}))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["content"][0], Json::parse(R"({"token":"bytes:\\xc3","logprob":-0.5,"bytes":[195],"top_logprobs":[
    {"token":"bytes:\\xc3","logprob":-0.5,"bytes":[195]},{"token":"x","logprob":-1.0,"bytes":[120]}]})"));
  EXPECT_EQ(logprobs["content"][1]["logprob"], -9999.0) << "JSON has no infinity";
  EXPECT_TRUE(logprobs["refusal"].is_null());
  EXPECT_EQ(data(delta_event(f, 0, scored()))["choices"][0]["logprobs"], logprobs);
  EXPECT_TRUE(data(delta_event(f, 0, piece("x", {})))["choices"][0]["logprobs"].is_null());
  Answer silent = piece("", {});
  silent.logprobs = scored().logprobs;
  EXPECT_NE(delta_event(f, 0, silent), "") << "tokens whose text is held back still have their figures";
}

TEST(Reply, LogprobsOfACompletion) {
  ReplyFrame f = frame(Endpoint::kCompletions);
  f.logprobs = 2;
  EXPECT_EQ(Json::parse(full_reply(f, {scored()}))["choices"][0]["logprobs"],
            Json::parse(R"({"tokens":["bytes:\\xc3","bytes:\\xa9","</s>"],
    "token_logprobs":[-0.5,-9999.0,null],"text_offset":[4,5,5],
    "top_logprobs":[{"bytes:\\xc3":-0.5,"x":-1.0},{"y":-0.25,"bytes:\\xa9":-9999.0},null]})"));
  f.logprobs = 0;
  EXPECT_TRUE(Json::parse(full_reply(f, {scored()}))["choices"][0]["logprobs"]["top_logprobs"].is_null());
}

TEST(Reply, TextThatIsNotUtf8IsReplacedNotThrown) {
  EXPECT_EQ(Json::parse(full_reply(frame(Endpoint::kCompletions), {answer("a\xff")}))["choices"][0]["text"],
            "a\xEF\xBF\xBD");
}

TEST(ErrorBody, HasTheFourFieldsAndTheRequestId) {
  const Json body = Json::parse(error_body(invalid_parameter("top_p", "a number"), "req-9"));
  const Json expected = {{"message", "Invalid 'top_p': expected a number. (request req-9)"},
                         {"type", "invalid_request_error"},
                         {"param", "top_p"},
                         {"code", "invalid_value"}};
  EXPECT_EQ(body, (Json{{"error", expected}}));
  EXPECT_TRUE(Json::parse(error_body(queue_full(), ""))["error"]["param"].is_null());
}

}  // namespace
}  // namespace specdec::deploy
