#include "deploy/serve/request/protocol.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace specdec::deploy {
namespace {

const ServeLimits kLimits;
std::string chat(const std::string& more = "") {
  return R"({"messages":[{"role":"user","content":"hi"}])" + (more.empty() ? "" : "," + more) + "}";
}
std::string completion(const std::string& more = "") {
  return R"({"prompt":"hi")" + (more.empty() ? "" : "," + more) + "}";
}

ApiRequest accept(Endpoint endpoint, const std::string& body) {
  auto result = parse_request(endpoint, body, kLimits);
  if (const auto* error = std::get_if<ApiError>(&result))
    ADD_FAILURE() << error->param << ": " << error->message << "\n" << body.substr(0, 200);
  return std::holds_alternative<ApiRequest>(result) ? std::get<ApiRequest>(result) : ApiRequest{};
}

ApiError refuse(Endpoint endpoint, const std::string& body) {
  auto result = parse_request(endpoint, body, kLimits);
  if (std::holds_alternative<ApiRequest>(result)) ADD_FAILURE() << "accepted: " << body.substr(0, 200);
  return std::holds_alternative<ApiError>(result) ? std::get<ApiError>(result) : ApiError{};
}

struct Bad {
  Endpoint endpoint;
  std::string body, param;
};

// Returns invalid bodies whose fields exist on only one of the two routes.
std::vector<Bad> bad_chats() {
  const auto C = Endpoint::kChat;
  return {
      {C, R"({})", "messages"},
      {C, R"({"messages":null})", "messages"},
      {C, R"({"messages":[]})", "messages"},
      {C, R"({"messages":"hi"})", "messages"},
      {C, R"({"messages":["hi"]})", "messages[0]"},
      {C, R"({"messages":[{"content":"hi"}]})", "messages[0].role"},
      {C, R"({"messages":[{"role":"robot","content":"hi"}]})", "messages[0].role"},
      {C, R"({"messages":[{"role":7,"content":"hi"}]})", "messages[0].role"},
      {C, R"({"messages":[{"role":"user","content":"a"},{"role":"user"}]})", "messages[1].content"},
      {C, R"({"messages":[{"role":"user","content":7}]})", "messages[0].content"},
      {C, R"({"messages":[{"role":"user","content":{"type":"text","text":"x"}}]})", "messages[0].content"},
      {C,
       R"({"messages":[{"role":"user","content":[{"type":"image_url",)"
       R"("image_url":{"url":"http://169.254.169.254/"}}]}]})",
       "messages[0].content"},
      {C, R"({"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}]})",
       "messages[0].content"},
      {C, R"({"messages":[{"role":"user","content":[{"type":"file","text":"x"}]}]})", "messages[0].content"},
      {C, R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "messages[0].content"},
      {C, R"({"messages":[{"role":"user","content":["x"]}]})", "messages[0].content"},
      {C, R"({"messages":[{"role":"user","content":"a\u0000b"}]})", "messages[0].content"},
      {C, R"({"messages":[{"role":"assistant","content":"x","tool_calls":[{}]}]})",
       "messages[0].tool_calls[0].function.name"},
      {C, R"({"messages":[{"role":"assistant","content":"x","function_call":{}}]})", "messages[0].function_call"},
      {C, R"({"messages":[{"role":"user","content":"x","tool_calls":[]}]})", "messages[0].tool_calls"},
      {C, R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {C, R"({"messages":[{"role":"assistant","tool_calls":[{"type":"custom","function":{"name":"f"}}]}]})",
       "messages[0].tool_calls[0].type"},
      {C, R"({"messages":[{"role":"user","content":null}]})", "messages[0].content"},
      {C, R"({"messages":[{"role":"assistant","content":7}]})", "messages[0].content"},
      {C, R"({"messages":[{"role":"assistant","content":"x","reasoning_content":7}]})",
       "messages[0].reasoning_content"},
      {C, chat(R"("tools":{})"), "tools"},
      {C, chat(R"("tools":[7])"), "tools[0].type"},
      {C, chat(R"("tools":[{"type":"web_search"}])"), "tools[0].type"},
      {C, chat(R"("tools":[{"type":"function"}])"), "tools[0].function"},
      {C, chat(R"("tools":[{"type":"function","function":{"name":"a b"}}])"), "tools[0].function.name"},
      {C, chat(R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])"),
       "tools[0].function.parameters"},
      {C, chat(R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])"),
       "tools[1].function.name"},
      {C, chat(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"any")"), "tool_choice"},
      {C, chat(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function"})"),
       "tool_choice"},
      {C,
       chat(R"("tools":[{"type":"function","function":{"name":"f"}}],)"
            R"("tool_choice":{"type":"function","function":{"name":"g"}})"),
       "tool_choice.function.name"},
      {C, chat(R"("tools":[{"type":"function","function":{"name":"f"}}],"response_format":{"type":"json_object"})"),
       "response_format"},
      {C, chat(R"("parallel_tool_calls":1)"), "parallel_tool_calls"},
      {C, chat(R"("tool_choice":"required")"), "tool_choice"},
      {C, chat(R"("functions":[{}])"), "functions"},
      {C, chat(R"("logprobs":1)"), "logprobs"},
      {C, chat(R"("top_logprobs":5)"), "top_logprobs"},
      {C, chat(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs"},
      {C, chat(R"("logprobs":true,"top_logprobs":-1)"), "top_logprobs"},
      {C, chat(R"("max_tokens":0,"echo":true)"), "max_tokens"},
  };
}

std::vector<Bad> bad_bodies() {
  const auto C = Endpoint::kChat, T = Endpoint::kCompletions;
  std::vector<Bad> all = bad_chats();
  const std::vector<Bad> more = {
      {C, chat(R"("modalities":["text","audio"])"), "modalities"},
      {C, chat(R"("audio":{})"), "audio"},
      {C, chat(R"("chat_template":"{{ 7*7 }}")"), "chat_template"},
      {C, chat(R"("chat_template_kwargs":[])"), "chat_template_kwargs"},
      {C, chat(R"("chat_template_kwargs":{"messages":[]})"), "chat_template_kwargs"},
      {T, R"({})", "prompt"},
      {T, R"({"prompt":7})", "prompt"},
      {T, R"({"prompt":{}})", "prompt"},
      {T, R"({"prompt":[]})", "prompt"},
      {T, R"({"prompt":["a",7]})", "prompt"},
      {T, R"({"prompt":[1,"a"]})", "prompt"},
      {T, R"({"prompt":[1,-1]})", "prompt"},
      {T, R"({"prompt":[1.0]})", "prompt"},
      {T, R"({"prompt":[2147483648]})", "prompt"},
      {T, R"({"prompt":[[1],[]]})", "prompt"},
      {T, R"({"prompt":[[1],"a"]})", "prompt"},
      {T, R"({"prompt":[true]})", "prompt"},
      {T, R"({"prompt":"a\u0000"})", "prompt"},
      {T, completion(R"("echo":1)"), "echo"},
      {T, completion(R"("echo":true,"max_tokens":-1)"), "max_tokens"},
      {T, completion(R"("suffix":"x")"), "suffix"},
      {T, completion(R"("logprobs":true)"), "logprobs"},
      {T, completion(R"("logprobs":21)"), "logprobs"},
      {T, completion(R"("logprobs":-1)"), "logprobs"},
      {T, completion(R"("best_of":2)"), "best_of"},
  };
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Returns invalid values of parameters that both routes have.
std::vector<std::pair<std::string, std::vector<std::string>>> bad_values() {
  return {
      {"model", {"7", "[]", R"("a\u0000")"}},
      {"temperature", {"-0.1", "2.1", "1e-40", "5e-324", "-1e-40", "\"1\"", "true", "[]", "{}"}},
      {"top_p", {"0", "-1", "1e-40", "1.01", "\"1\""}},
      {"min_p", {"-0.1", "1", "\"0\""}},
      {"top_k", {"-2", "1.0", "\"5\"", "2147483648", "true"}},
      {"seed", {"1.5", "\"1\"", "9223372036854775808", "-9223372036854775809", "true"}},
      {"max_tokens", {"0", "-1", "1.0", "\"5\"", "2147483648", "1e3", "99999999999999999999"}},
      {"max_completion_tokens", {"0", "-1", "1.0", "\"5\""}},
      {"min_tokens", {"-1", "1.0", "true", "2147483648"}},
      {"truncate_prompt_tokens", {"0", "-2", "1.0", "\"5\"", "2147483648"}},
      {"stop_token_ids", {"7", "\"x\"", "{}", "[-1]", "[1.0]", "[\"7\"]", "[null]", "[[7]]", "[2147483648]"}},
      {"allowed_token_ids", {"7", "[]", "{}", "[-1]", "[1.0]", "[\"7\"]", "[null]", "[2147483648]"}},
      {"include_stop_str_in_output", {"1", "\"true\""}},
      {"n", {"0", "9", "-1", "1.0", "\"2\"", "true", "18446744073709551615"}},
      {"stop", {"7", "\"\"", "[\"\"]", "[7]", "{}", "[null]", "\"\\u0000\""}},
      {"stream", {"1", "\"true\""}},
      {"stream_options", {"{\"include_usage\":true}", "7"}},
      {"presence_penalty", {"2.1", "-2.1", "\"0\"", "true"}},
      {"frequency_penalty", {"2.1", "-2.1", "[]"}},
      {"repetition_penalty", {"0", "-1", "1e-60", "1e-38", "0.0099", "2.1", "\"1\""}},
      {"logit_bias",
       {R"({"5":101})", R"({"5":-100.5})", R"({"5":"1"})", R"({"-1":1})", R"({"05":1})", R"({"a":1})", R"({"":1})",
        R"({"2147483648":1})", R"({"5 ":1})", "[]", "7"}},
      {"bad_words", {"\"x\"", "[\"\"]", "[7]", "{}", "[\"\\u0000\"]"}},
      {"speculative", {"0", "\"false\""}},
      {"return_token_ids", {"1"}},
      {"return_tokens_as_token_ids", {"1", "\"true\""}},
      {"include_metrics", {"\"yes\""}},
      {"ignore_eos", {"0"}},
      {"user", {"7"}},
      {"metadata", {"\"x\"", "[]"}},
      {"guided_json", {"7", "[1]", "true"}},
      {"guided_regex", {"7", "{\"a\":1}"}},
      {"guided_choice", {"\"a\"", "[\"\"]", "[7]", "{\"a\":1}"}},
      {"guided_grammar", {"\"start: A\""}},
      {"structured_outputs", {"7", "\"x\""}},
  };
}

TEST(Protocol, EveryBadParameterIsA400ThatNamesIt) {
  std::vector<Bad> cases = bad_bodies();
  for (const auto& [param, values] : bad_values())
    for (const std::string& value : values) {
      cases.push_back({Endpoint::kChat, chat("\"" + param + "\":" + value), param});
      cases.push_back({Endpoint::kCompletions, completion("\"" + param + "\":" + value), param});
    }
  for (const Bad& bad : cases) {
    const ApiError error = refuse(bad.endpoint, bad.body);
    EXPECT_EQ(error.status, 400) << bad.body;
    EXPECT_EQ(error.type, "invalid_request_error") << bad.body;
    EXPECT_EQ(error.param, bad.param) << bad.body;
  }
  EXPECT_EQ(refuse(Endpoint::kChat, chat(R"("stream":true,
    "stream_options":{"include_usage":1})"))
                .param,
            "stream_options.include_usage");
  const auto param = [](const std::string& more) { return refuse(Endpoint::kChat, chat(more)).param; };
  for (const char* format : {"7", "{}", R"("text")", R"({"type":"xml"})", R"({"type":7})"})
    EXPECT_EQ(param(std::string("\"response_format\":") + format), "response_format.type");
  for (const char* schema : {"7", "{}", R"({"schema":7})", "null"})
    EXPECT_EQ(param(R"("response_format":{"type":"json_schema","json_schema":)" + std::string(schema) + "}"),
              "response_format.json_schema");
  EXPECT_EQ(param(R"("structured_outputs":{"regex":7})"), "structured_outputs.regex");
  EXPECT_EQ(param(R"("structured_outputs":{"grammar":"x"})"), "structured_outputs.grammar");
  EXPECT_EQ(param(R"("guided_regex":"a","guided_choice":["b"])"), "guided_choice") << "one grammar per request";
  EXPECT_EQ(param(R"("response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"})"),
            "structured_outputs.regex");
}

TEST(Protocol, WhatIsNotOneBoundedJsonObjectIsA400) {
  for (const std::string body : {"", " ", "null", "[]", "7", "{", R"({"prompt":"a"}x)",
                                 R"({"prompt":"a","prompt":"b"})", "{\"prompt\":\"\xff\"}", R"({"prompt":"\ud800"})",
                                 R"({"prompt":NaN})", R"({"temperature":1e999,"prompt":"a"})", R"({'prompt':'a'})"}) {
    const ApiError error = refuse(Endpoint::kCompletions, body);
    EXPECT_EQ(error.status, 400) << body;
    EXPECT_EQ(error.code, "invalid_json") << body;
  }
  EXPECT_EQ(refuse(Endpoint::kCompletions, std::string("{\"prompt\":\"a\"}\0x", 16)).code, "invalid_json");
}

std::string repeat(const std::string& item, size_t n, const char* separator = ",") {
  std::string s;
  for (size_t i = 0; i < n; ++i) s += (i ? separator : "") + item;
  return s;
}

TEST(Protocol, LimitsHoldJustUnderAtAndAbove) {
  const auto C = Endpoint::kChat, T = Endpoint::kCompletions;
  const auto status = [](Endpoint endpoint, const std::string& body) {
    const auto result = parse_request(endpoint, body, kLimits);
    return std::holds_alternative<ApiRequest>(result) ? 200 : std::get<ApiError>(result).status;
  };
  // The body's own object counts as one level of JSON depth.
  const auto nested = [](int levels) {
    return completion("\"x\":" + std::string(levels, '[') + std::string(levels, ']'));
  };
  EXPECT_EQ(status(T, nested(62)), 200);
  EXPECT_EQ(status(T, nested(63)), 200);
  EXPECT_EQ(status(T, nested(64)), 400);
  EXPECT_EQ(status(T, nested(1000000)), 400);
  for (const auto& [delta, want] : {std::pair{-1, 200}, {0, 200}, {1, 400}}) {
    const auto n = [delta = delta](size_t limit) { return limit + static_cast<size_t>(delta); };
    EXPECT_EQ(status(T, completion("\"x\":[" + repeat("0", n(kLimits.array_items)) + "]")), want);
    EXPECT_EQ(status(C, R"({"messages":[)" + repeat(R"({"role":"user","content":"x"})", n(kLimits.messages)) + "]}"),
              want);
    EXPECT_EQ(status(T, R"({"prompt":[)" + repeat("\"x\"", n(kLimits.prompts)) + "]}"), want);
    EXPECT_EQ(status(T, R"({"prompt":[)" + repeat("[1]", n(kLimits.prompts)) + "]}"), want);
    EXPECT_EQ(status(T, completion("\"stop\":[" + repeat("\"s\"", n(kLimits.stop_strings)) + "]")), want);
    EXPECT_EQ(status(T, completion("\"stop\":\"" + std::string(n(kLimits.stop_bytes), 's') + "\"")), want);
    EXPECT_EQ(status(T, completion("\"stop_token_ids\":[" + repeat("7", n(kLimits.stop_tokens)) + "]")), want);
    EXPECT_EQ(status(T, completion("\"allowed_token_ids\":[" + repeat("7", n(kLimits.array_items)) + "]")), want);
    EXPECT_EQ(status(T, completion("\"bad_words\":[" + repeat("\"s\"", n(kLimits.bad_words)) + "]")), want);
    EXPECT_EQ(status(T, completion("\"bad_words\":[\"" + std::string(n(kLimits.bad_word_bytes), 's') + "\"]")), want);
    EXPECT_EQ(
        status(C, chat("\"chat_template_kwargs\":{\"x\":\"" + std::string(n(kLimits.template_bytes) - 8, 's') + "\"}")),
        want);
    std::string tools;
    for (size_t i = 0; i < n(kLimits.tools); ++i)
      tools += (i ? "," : "") + (R"({"type":"function","function":{"name":"f)" + std::to_string(i)) + "\"}}";
    EXPECT_EQ(status(C, chat("\"tools\":[" + tools + "]")), want);
    EXPECT_EQ(status(T, completion("\"guided_regex\":\"" + std::string(n(kLimits.grammar_bytes), 's') + "\"")), want);
    std::string biases;
    for (size_t i = 0; i < n(kLimits.logit_biases); ++i) biases += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
    EXPECT_EQ(status(T, completion("\"logit_bias\":{" + biases + "}")), want);
    const std::string padding(n(kLimits.body_bytes) - completion("\"x\":\"\"").size(), 'a');
    EXPECT_EQ(status(T, completion("\"x\":\"" + padding + "\"")), want == 200 ? 200 : 413);
  }
  EXPECT_EQ(status(T, R"({"n":8,"prompt":[)" + repeat("\"x\"", 16) + "]}"), 200);
  EXPECT_EQ(status(T, R"({"n":8,"prompt":[)" + repeat("\"x\"", 17) + "]}"), 400);
  // The limit counts array items, so commas inside strings do not matter.
  EXPECT_EQ(status(T, completion("\"x\":\"" + std::string(100000, ',') + "\\\"" + std::string(100000, ',') + "\"")),
            200);
}

TEST(Protocol, ReadsAFullChatRequest) {
  const ApiRequest r = accept(Endpoint::kChat, R"({"model":"m","messages":[{"role":"system","content":"be brief"},
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"x"}],
    "temperature":0.5,"top_p":0.9,"top_k":40,
    "min_p":0.05,"max_completion_tokens":7,"seed":-3,"n":2,"stop":["x","y"],"stream":true,
    "stream_options":{"include_usage":true},
    "return_token_ids":true,"return_tokens_as_token_ids":true,"include_metrics":true,"ignore_eos":true,
    "metadata":{"domain":"code","conversation_id":"c-1","more":"x"},
    "user":"u","unknown":{"a":[1,2]},"tools":[],"logit_bias":{},"presence_penalty":0,"frequency_penalty":0.0,
    "logprobs":false,"response_format":{"type":"text"},"service_tier":"auto"})");
  EXPECT_EQ(r.model, "m");
  ASSERT_EQ(r.chat.messages.size(), 2u);
  EXPECT_EQ(r.chat.messages[1].role, "user");
  EXPECT_EQ(r.chat.messages[1].content, "ab");
  EXPECT_EQ(r.options.sampling.temperature, 0.5);
  EXPECT_EQ(r.options.sampling.top_p, 0.9);
  EXPECT_EQ(r.options.sampling.top_k, 40);
  EXPECT_EQ(r.options.sampling.min_p, 0.05);
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_EQ(r.max_tokens_param, "max_completion_tokens");
  EXPECT_EQ(r.seed, -3);
  EXPECT_EQ(r.n, 2);
  EXPECT_EQ(r.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(r.stream && r.include_usage && r.return_token_ids && r.tokens_as_ids && r.include_metrics &&
              r.ignore_eos);
  EXPECT_EQ(r.domain, "code");
  EXPECT_EQ(r.conversation, "c-1");
}

TEST(Protocol, ReadsToolsInTheOrderSentAndCallsAsTheTemplateTakesThem) {
  const ApiRequest r = accept(Endpoint::kChat, R"({"messages":[{"role":"user","content":"x"},
    {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function",
      "function":{"name":"f","arguments":"{\"z\": 1, \"a\": [2.50, null]}"}},
      {"id":"c2","type":"function","function":{"name":"f","arguments":"{oops"}}]},
    {"role":"tool","tool_call_id":"c1","name":"f","content":"r"}],
    "\u0074ools":[{"type":"function","function":{"name":"f","description":"d","parameters":
      {"type":"object","properties":{"z":{"type":"integer"},"a":{}}}}},{"type":"function","function":{"name":"g"}}],
    "tool_choice":{"type":"function","function":{"name":"g"}},"parallel_tool_calls":false,
    "chat_template_kwargs":{"enable_thinking":false}})");
  EXPECT_EQ(r.chat.messages[1].tool_calls,
            R"([{"id":"c1","type":"function","function":{"name":"f","arguments":{"z":1,"a":[2.5,null]}}},)"
            R"({"id":"c2","type":"function","function":{"name":"f","arguments":{}}}])");
  EXPECT_EQ(r.chat.messages[1].content, "");
  EXPECT_EQ(r.chat.messages[1].reasoning_content, "hm");
  EXPECT_EQ(r.chat.messages[2].tool_call_id + r.chat.messages[2].name, "c1f");
  EXPECT_EQ(
      r.chat.tools.text,
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":)"
      R"({"z":{"type":"integer"},"a":{}}}}},{"type":"function","function":{"name":"g"}}])");
  ASSERT_EQ(r.chat.tools.list.size(), 2u);
  EXPECT_EQ(r.chat.tools.list[1].parameters["additionalProperties"], false) << "no parameters are an empty list";
  EXPECT_EQ(r.chat.tools.choice, ToolChoice::kNamed);
  EXPECT_EQ(r.chat.tools.named, "g");
  EXPECT_FALSE(r.chat.tools.parallel);
  EXPECT_EQ(r.chat.template_variables, (Json{{"enable_thinking", false}}));
  EXPECT_EQ(accept(Endpoint::kChat, chat(R"("tools":[{"type":"function","function":{"name":"f"}}])")).chat.tools.choice,
            ToolChoice::kAuto);
}

// Objects that keep their keys in the order sent have linear look-up, so an object with too many keys is refused.
// Otherwise its parsing would take quadratic time.
TEST(Protocol, ObjectsOfManyKeysAreRefusedWhereTheirOrderCounts) {
  std::string many;
  for (int i = 0; i < 60000; ++i) many += (i ? ",\"" : "\"") + std::to_string(i) + "\":0";
  EXPECT_EQ(refuse(Endpoint::kCompletions, completion("\"guided_json\":{" + many + "}")).param, "guided_json");
  EXPECT_EQ(refuse(Endpoint::kChat,
                   chat(R"("tools":[{"type":"function","function":{"name":"f","parameters":{)" + many + "}}}]"))
                .param,
            "tools");
}

TEST(Protocol, ReadsWhatARequestAsksOfItsTokens) {
  const ApiRequest r = accept(
      Endpoint::kChat,
      chat(R"("presence_penalty":-2,"frequency_penalty":2,"repetition_penalty":1.5,"logit_bias":{"7":-100,"0":0.5},
    "bad_words":["x","y z"],"logprobs":true,"top_logprobs":20,"speculative":false,"guided_regex":"a+")"));
  EXPECT_EQ(r.rules.presence_penalty, -2);
  EXPECT_EQ(r.rules.frequency_penalty, 2);
  EXPECT_EQ(r.rules.repetition_penalty, 1.5);
  EXPECT_EQ(r.rules.bias, (std::vector<std::pair<int32_t, float>>{{0, 0.5f}, {7, -100.f}}));
  EXPECT_EQ(r.bad_words, (std::vector<std::string>{"x", "y z"}));
  EXPECT_EQ(r.options.logprobs, 20);
  EXPECT_FALSE(r.options.speculate);
  ASSERT_TRUE(r.grammar);
  EXPECT_EQ(r.grammar->kind, text::GrammarKind::kRegex);
  EXPECT_EQ(r.grammar->source, "a+");
  EXPECT_EQ(accept(Endpoint::kChat, chat(R"("logprobs":true)")).options.logprobs, 0);
  EXPECT_EQ(accept(Endpoint::kChat, chat(R"("top_logprobs":0)")).options.logprobs, -1);
  const ApiRequest scored = accept(Endpoint::kCompletions, completion(R"("echo":true,"max_tokens":0,"logprobs":3)"));
  EXPECT_TRUE(scored.echo && scored.max_tokens == 0 && scored.options.logprobs == 3);
}

TEST(Protocol, ReadsWhereAnAnswerMayEnd) {
  const ApiRequest r = accept(Endpoint::kCompletions,
                              completion(R"("stop_token_ids":[7,0,7],"min_tokens":3,"allowed_token_ids":[5,2147483647],
    "include_stop_str_in_output":true,"truncate_prompt_tokens":-1)"));
  EXPECT_EQ(r.stop_token_ids, (std::vector<int32_t>{7, 0, 7}));
  EXPECT_EQ(r.rules.min_tokens, 3);
  EXPECT_EQ(r.rules.allowed_ids, (std::vector<int32_t>{5, 2147483647}));
  EXPECT_TRUE(r.include_stop_str_in_output);
  EXPECT_EQ(r.truncate_prompt_tokens, -1);
  const ApiRequest none = accept(Endpoint::kChat, chat(R"("stop_token_ids":[],"min_tokens":null,
    "allowed_token_ids":null,"include_stop_str_in_output":false,"truncate_prompt_tokens":null)"));
  EXPECT_TRUE(none.stop_token_ids.empty() && none.rules.allowed_ids.empty() && none.rules.min_tokens == 0);
  EXPECT_FALSE(none.include_stop_str_in_output || none.truncate_prompt_tokens);
}

// max_tokens is the deprecated name of max_completion_tokens, so its value is ignored if both are given.
TEST(Protocol, MaxCompletionTokensSupersedesMaxTokens) {
  for (const char* both :
       {R"("max_tokens":5,"max_completion_tokens":6)", R"("max_completion_tokens":6,"max_tokens":5)"})
    for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
      const ApiRequest r = accept(endpoint, endpoint == Endpoint::kChat ? chat(both) : completion(both));
      EXPECT_EQ(r.max_tokens, 6);
      EXPECT_EQ(r.max_tokens_param, "max_completion_tokens");
    }
  EXPECT_EQ(refuse(Endpoint::kChat, chat(R"("max_tokens":"x","max_completion_tokens":6)")).param, "max_tokens");
  EXPECT_EQ(accept(Endpoint::kChat, chat(R"("max_tokens":5,"max_completion_tokens":null)")).max_tokens, 5);
}

TEST(Protocol, TokenizeTakesAPromptOrMessages) {
  const auto asked = [](const std::string& body) { return parse_tokenize(body, kLimits); };
  const auto text = std::get<TokenizeRequest>(asked(R"({"prompt":"a","messages":7})"));
  EXPECT_EQ(text.prompt, "a");
  EXPECT_TRUE(text.add_special_tokens && text.add_generation_prompt && !text.return_token_strs);
  const auto talk = std::get<TokenizeRequest>(
      asked(R"({"model":"m","messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false,
    "return_token_strs":true,"temperature":9,"tools":[]})"));
  EXPECT_EQ(talk.model, "m");
  EXPECT_EQ(talk.chat.messages.at(0).content, "hi");
  EXPECT_FALSE(talk.prompt || talk.add_special_tokens || talk.add_generation_prompt);
  EXPECT_TRUE(talk.return_token_strs);
  const auto param = [&](const std::string& body) {
    const auto result = asked(body);
    const auto* error = std::get_if<ApiError>(&result);
    EXPECT_TRUE(error) << body;
    return error ? error->param : "";
  };
  EXPECT_EQ(param("{}"), "prompt");
  EXPECT_EQ(param(R"({"prompt":["a"]})"), "prompt");
  EXPECT_EQ(param(R"({"prompt":"a\u0000"})"), "prompt");
  EXPECT_EQ(param(R"({"prompt":"a","add_special_tokens":1})"), "add_special_tokens");
  EXPECT_EQ(param(R"({"prompt":"a","return_token_strs":"x"})"), "return_token_strs");
  EXPECT_EQ(param(R"({"messages":[]})"), "messages");
  const std::string messages = R"({"messages":[{"role":"user","content":"a"}],)";
  for (const char* field : {"documents", "functions"}) EXPECT_EQ(param(messages + "\"" + field + R"(":[{}]})"), field);
  EXPECT_EQ(param(messages + R"("tools":[{}]})"), "tools[0].type");
  EXPECT_EQ(param(messages + R"("continue_final_message":true})"), "continue_final_message");
  EXPECT_EQ(param(messages + R"("chat_template":"x"})"), "chat_template");
}

TEST(Protocol, DetokenizeTakesTokenIds) {
  const auto asked = [](const std::string& body) { return parse_detokenize(body, kLimits); };
  EXPECT_EQ(std::get<DetokenizeRequest>(asked(R"({"tokens":[5,0]})")).tokens, (std::vector<int32_t>{5, 0}));
  EXPECT_TRUE(std::get<DetokenizeRequest>(asked(R"({"tokens":[]})")).tokens.empty());
  for (const char* bad : {"{}", R"({"tokens":7})", R"({"tokens":[-1]})", R"({"tokens":[1.0]})", R"({"tokens":["a"]})"})
    EXPECT_EQ(std::get<ApiError>(asked(bad)).param, "tokens") << bad;
  EXPECT_EQ(std::get<ApiError>(asked("[]")).code, "invalid_json");
}

TEST(Protocol, GrammarsComeInSeveralFormsAndKeepTheirOrder) {
  const auto grammar = [](const std::string& more) {
    return accept(Endpoint::kChat, chat(more)).grammar.value_or(RequestedGrammar{});
  };
  const std::string schema = R"({"type":"object","properties":{"zebra":{"type":"integer"},"ant":{"type":"string"}}})";
  for (const std::string& form :
       {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":)" + schema + "}}",
        R"("response_format":{"type":"json_object","schema":)" + schema + "}", "\"guided_json\":" + schema,
        "\"structured_outputs\":{\"json\":" + schema + "}"}) {
    EXPECT_EQ(grammar(form).source, schema) << form;
    EXPECT_EQ(grammar(form).kind, text::GrammarKind::kJsonSchema);
  }
  EXPECT_EQ(grammar(R"("guided_json":"{\"type\":\"null\"}")").source, R"({"type":"null"})");
  for (const char* form :
       {R"("response_format":{"type":"json_object"})", R"("structured_outputs":{"json_object":true})"})
    EXPECT_EQ(grammar(form).source, R"({"type":"object"})");
  EXPECT_EQ(grammar(R"("guided_choice":["a.b","c|d","<é>"])").source, "(a\\x2eb|c\\x7cd|<é>)");
  EXPECT_EQ(grammar(R"("structured_outputs":{"choice":["yes"]})").source, "(yes)");
  for (const char* none : {R"("response_format":{"type":"text"})", R"("guided_json":null)", R"("guided_json":{})",
                           R"("structured_outputs":{})"})
    EXPECT_FALSE(accept(Endpoint::kChat, chat(none)).grammar) << none;
}

TEST(Protocol, NullAndAbsentAreTheDefaults) {
  const ApiRequest r =
      accept(Endpoint::kCompletions,
             completion(R"("temperature":null,"max_tokens":null,"stop":null,"n":null,"seed":null,"top_k":-1,
    "stream":null,"logprobs":null,"echo":null,"best_of":1,"metadata":null,"stream_options":null,"model":null)"));
  EXPECT_EQ(r.options.sampling.temperature, 1);
  EXPECT_EQ(r.options.sampling.top_k, 0);
  EXPECT_FALSE(r.max_tokens || r.seed || r.stream);
  EXPECT_EQ(r.n, 1);
  EXPECT_EQ(r.prompts, std::vector<std::string>{"hi"});
}

TEST(Protocol, PromptsComeInFourForms) {
  EXPECT_EQ(accept(Endpoint::kCompletions, R"({"prompt":""})").prompts, std::vector<std::string>{""});
  EXPECT_EQ(accept(Endpoint::kCompletions, R"({"prompt":["a","b"]})").prompts, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(accept(Endpoint::kCompletions, R"({"prompt":[1,2]})").prompt_ids,
            (std::vector<std::vector<int32_t>>{{1, 2}}));
  EXPECT_EQ(accept(Endpoint::kCompletions, R"({"prompt":[[1],[2,3]]})").prompt_ids,
            (std::vector<std::vector<int32_t>>{{1}, {2, 3}}));
}

TEST(Protocol, ADomainThatDoesNotFitIsDropped) {
  const auto domain = [](const std::string& metadata) {
    return accept(Endpoint::kChat, chat("\"metadata\":" + metadata)).domain;
  };
  EXPECT_EQ(domain(R"({"domain":"code-2_x.y"})"), "code-2_x.y");
  EXPECT_EQ(domain("{\"domain\":\"" + std::string(kLimits.domain_bytes, 'd') + "\"}"),
            std::string(kLimits.domain_bytes, 'd'));
  EXPECT_EQ(domain("{\"domain\":\"" + std::string(kLimits.domain_bytes + 1, 'd') + "\"}"), "");
  for (const char* unfit : {R"({"domain":7})", R"({"domain":"a b"})", R"({"domain":"a\"b"})", R"({"domain":"é"})",
                            R"({"domain":["x"]})", "{}"})
    EXPECT_EQ(domain(unfit), "") << unfit;
}

// The text of a refusal must not contain any part of the request.
TEST(Protocol, RefusalsDoNotEchoInput) {
  for (const std::string& body : {chat(R"("temperature":"<script>/home/x 0xdeadbeef")"),
                                  chat(R"("stop":{"<script>":1})"), std::string("{\"<script>")}) {
    const ApiError error = refuse(Endpoint::kChat, body);
    EXPECT_EQ(error_body(error, "req-1").find("script"), std::string::npos) << body;
  }
}

}  // namespace
}  // namespace specdec::deploy
