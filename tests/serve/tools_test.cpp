// Tests of function calls and thoughts through the whole server: requests, rendered prompts, split answers and
// refusals.
#include <gtest/gtest.h>

#include "tests/serve/running_server.h"

namespace specdec::deploy {
namespace {

constexpr char kCall[] = R"(<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>)";
constexpr char kTools[] = R"("tools":[{"type":"function","function":{"name":"f"}}])";

std::string chat(const std::string& content, const std::string& more = "") {
  return post("/v1/chat/completions", R"({"messages":[{"role":"user","content":)" + Json(content).dump() + "}]" +
                                          (more.empty() ? "" : "," + more) + "}");
}

Json message(const Response& reply) {
  EXPECT_EQ(reply.status, 200) << reply.body;
  return Json::parse(reply.body)["choices"][0]["message"];
}

TEST(Tools, CallsAreReturnedOnlyIfToolsAreOffered) {
  Running s;
  s.model.tool_format = ToolFormat::kHermes;
  s.start();
  const std::string said = std::string("say:Well. ") + kCall;
  const Response with = s.ask(chat(said, kTools));
  EXPECT_EQ(message(with)["content"], "Well.");
  ASSERT_EQ(message(with)["tool_calls"].size(), 1u);
  EXPECT_EQ(message(with)["tool_calls"][0]["function"], (Json{{"name", "f"}, {"arguments", R"({"a":1})"}}));
  EXPECT_EQ(Json::parse(with.body)["choices"][0]["finish_reason"], "tool_calls");
  for (const std::string& more : {std::string(), std::string(kTools) + R"(,"tool_choice":"none")"}) {
    const Response without = s.ask(chat(said, more));
    EXPECT_EQ(message(without)["content"], said.substr(4));
    EXPECT_FALSE(message(without).contains("tool_calls"));
    EXPECT_EQ(Json::parse(without.body)["choices"][0]["finish_reason"], "stop");
  }
  // An answer that max_tokens cuts off has finish_reason "length", even after a complete call.
  const Response cut = s.ask(chat(said, std::string(kTools) + R"(,"max_tokens":45)"));
  EXPECT_EQ(Json::parse(cut.body)["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(message(cut)["tool_calls"].size(), 1u);
}

TEST(Tools, AreRefusedWhereTheModelKnowsNone) {
  Running s;
  s.start();
  const Response refused = s.ask(chat("say:x", kTools));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Json::parse(refused.body)["error"]["param"], "tools");
  EXPECT_EQ(s.ask(chat("say:x", std::string(kTools) + R"(,"tool_choice":"none")")).status, 200);
}

TEST(Tools, VariablesThatTheServerSetsAreRefusedByTheirField) {
  Running s;
  s.start();
  for (const char* name : {"bos_token", "eos_token", "documents", "messages"}) {
    const Response refused = s.ask(chat("say:x", R"("chat_template_kwargs":{")" + std::string(name) + R"(":"y"})"));
    EXPECT_EQ(refused.status, 400) << name;
    const Json error = Json::parse(refused.body)["error"];
    EXPECT_EQ(error["param"], "chat_template_kwargs");
    EXPECT_NE(error["message"].get<std::string>().find(name), std::string::npos) << error;
  }
  EXPECT_EQ(s.ask(chat("say:x", R"("chat_template_kwargs":{"thinking":"y"})")).status, 200);
}

TEST(Tools, ForcedArgumentsAreAnObject) {
  const auto read = [](const std::string& parameters, const std::string& choice) {
    return parse_request(Endpoint::kChat,
                         R"({"messages":[{"role":"user","content":"x"}],"tool_choice":)" + choice +
                             R"(,"tools":[{"type":"function","function":{"name":"f","parameters":)" + parameters +
                             R"(}},{"type":"function","function":{"name":"g"}}]})",
                         {});
  };
  const std::string f = R"({"type":"function","function":{"name":"f"}})",
                    g = R"({"type":"function","function":{"name":"g"}})";
  for (const char* wrong : {R"({"type":"string"})", R"({"type":["object","null"]})", R"({"type":7})"}) {
    for (const std::string& choice : {f, std::string("\"required\"")}) {
      const auto refused = read(wrong, choice);
      ASSERT_TRUE(std::holds_alternative<ApiError>(refused)) << wrong;
      EXPECT_EQ(std::get<ApiError>(refused).param, "tools");
    }
    for (const std::string& choice : {g, std::string("\"auto\"")})
      EXPECT_TRUE(std::holds_alternative<ApiRequest>(read(wrong, choice))) << "nothing is forced to follow it";
  }
  for (const char* right : {R"({})", R"({"type":null})", R"({"anyOf":[{"required":["a"]}]})", R"({"type":"object"})"}) {
    const auto taken = read(right, f);
    ASSERT_TRUE(std::holds_alternative<ApiRequest>(taken)) << right;
    const OfferedTools& tools = std::get<ApiRequest>(taken).chat.tools;
    EXPECT_EQ(tools.list[0].parameters["type"], "object");
    EXPECT_NE(tools.text.find(right), std::string::npos) << "the template gets the schema as it was sent";
  }
}

TEST(Tools, ArgumentsOfEarlierCallsThatAreNoJsonDoNotMakeTheConversationFail) {
  const auto arguments = [](const std::string& text) {
    Json call = {{"function", {{"name", "f"}, {"arguments", text}}}};
    const Json message = {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({std::move(call)})}};
    const auto read = parse_request(Endpoint::kChat, Json{{"messages", Json::array({message})}}.dump(), {});
    if (const auto* refused = std::get_if<ApiError>(&read)) return "refused: " + refused->param;
    return Json::parse(std::get<ApiRequest>(read).chat.messages[0].tool_calls)[0]["function"]["arguments"].dump();
  };
  for (const char* none : {"", " \n", "{}", "{\"value\": ", "what", R"({"a":"\ud8)", R"({"a":1e)", "{\"a\":01}"})
    EXPECT_EQ(arguments(none), "{}") << none;
  for (const char* json : {"null", "[1,2]", "5"}) EXPECT_EQ(arguments(json), json) << "goes to the template as it is";
  // Arguments that are JSON, but that the server cannot pass on exactly (a key twice, a number or nesting beyond its
  // limits, too many keys), are refused instead of being replaced by {}.
  std::string many = "{\"k\":1";
  for (int i = 0; i < 4096; ++i) many += ",\"k" + std::to_string(i) + "\":1";
  for (const std::string& whole :
       {std::string(R"({"a":"hello","a":"again"})"), std::string(R"({"a":"hello \ud800"})"),
        std::string(R"({"a":1,"b":1e400})"), R"({"a":)" + std::string(70, '[') + std::string(70, ']') + "}", many + "}",
        std::string("\"text\"")})
    EXPECT_EQ(arguments(whole), "refused: messages[0].tool_calls[0].function.arguments") << whole.substr(0, 40);
}

TEST(Tools, WhatTheTemplateLeavesOutIsRefusedByName) {
  Running s;
  s.chat_template = text::ChatTemplate(
      "{% for m in messages if m.role in ['system', 'user'] %}{{ m.content }}{% endfor %}", "<s>", "</s>");
  s.start();
  const auto ask = [&](const Json& messages) {
    return s.ask(post("/v1/chat/completions", Json{{"messages", messages}}.dump()));
  };
  const Json question = {{"role", "user"}, {"content", "say:x"}};
  const Response refused = ask({question, {{"role", "assistant"}, {"content", "x"}}, question});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(Json::parse(refused.body)["error"]["param"], "messages[1].content");
  EXPECT_EQ(ask({{{"role", "developer"}, {"content", "say:"}}, {{"role", "user"}, {"content", "yes"}}}).status, 200);
  EXPECT_EQ(
      message(ask({{{"role", "developer"}, {"content", "say:"}}, {{"role", "user"}, {"content", "yes"}}}))["content"],
      "yes");
}

TEST(Tools, NulIsRefusedByName) {
  Running s;
  s.model.tool_format = ToolFormat::kHermes;
  s.start();
  const auto param = [&](const std::string& request) {
    const Response refused = s.ask(request);
    EXPECT_EQ(refused.status, 400) << request;
    return Json::parse(refused.body)["error"]["param"];
  };
  const auto tool = [](const std::string& more) {
    return chat("say:x", R"("tools":[{"type":"function","function":{"name":"f",)" + more + "}}]");
  };
  EXPECT_EQ(param(tool(R"("description":"a\u0000b")")), "tools[0].function.description");
  EXPECT_EQ(param(tool(R"("parameters":{"type":"object","properties":{"a\u0000":{}}})")),
            "tools[0].function.parameters");
  EXPECT_EQ(param(tool(R"("parameters":{"type":"object","enum":[{"a":["\u0000"]}]})")), "tools[0].function.parameters");
  EXPECT_EQ(param(tool(R"("strict":"\u0000")")), "tools[0].function");
  EXPECT_EQ(param(tool(R"("returns":[{"a\u0000":1}])")), "tools[0].function");
  EXPECT_EQ(param(tool(R"("a\u0000b":1)")), "tools[0].function");
  const std::string function = R"({"type":"function","function":{"name":"f"},)";
  EXPECT_EQ(param(chat("say:x", R"("tools":[)" + function + R"("note":"\u0000"}])")), "tools[0]");
  EXPECT_EQ(param(chat("say:x", R"("tools":[)" + function + R"("\u0000":1}])")), "tools[0]");
  EXPECT_EQ(param(chat("say:x", R"("chat_template_kwargs":{"x":["a\u0000"]})")), "chat_template_kwargs");
  for (const char* arguments : {R"({\"a\":\"\\u0000\"})", R"(no \u0000 object)"})
    EXPECT_EQ(param(post("/v1/chat/completions",
                         R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":")" +
                             std::string(arguments) + R"("}}]}]})")),
              "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(s.ask(tool(R"("description":"\\u0000")")).status, 200) << "a backslash and letters are no NUL";
}

// The content of assistant and tool messages may be null or absent.
TEST(Tools, AssistantsAndFunctionsMayHaveGivenNothing) {
  const auto accept = [](const std::string& body) {
    return std::get<ApiRequest>(parse_request(Endpoint::kChat, body, {}));
  };
  for (const char* empty : {R"("content":null)", R"("content":"")", R"("content":[])",
                            R"("content":null,"tool_calls":[])", R"("tool_calls":null)"}) {
    const ApiRequest r = accept(R"({"messages":[{"role":"user","content":"x"},{"role":"assistant",)" +
                                std::string(empty) + R"(},{"role":"user","content":"y"}]})");
    ASSERT_EQ(r.chat.messages.size(), 3u) << empty;
    EXPECT_EQ(r.chat.messages[1].content, "") << empty;
    EXPECT_EQ(r.chat.messages[1].tool_calls, "") << empty;
  }
  for (const char* empty : {R"("tool_call_id":"c")", R"("tool_call_id":"c","content":null)"}) {
    const ApiRequest r = accept(R"({"messages":[{"role":"tool",)" + std::string(empty) + "}]}");
    EXPECT_EQ(r.chat.messages.at(0).content, "") << empty;
  }
}

TEST(Tools, ThoughtsAreApartFromTheContent) {
  Running s;
  s.model.reasoning = {"<think>", "</think>"};
  s.start();
  const Json said = message(s.ask(chat("say:<think>\nHm.\n</think>\n\nYes.")));
  EXPECT_EQ(said["content"], "Yes.");
  EXPECT_EQ(said["reasoning_content"], "Hm.");
  EXPECT_FALSE(message(s.ask(chat("say:Yes."))).contains("reasoning_content"));
}

// Some chat templates end with the marker that begins thoughts. An answer that must match a grammar has no thoughts
// anyway.
TEST(Tools, AGrammarIsTheWholeAnswer) {
  Running s;
  s.model.reasoning = {"<think>", "</think>"};
  s.start();
  const std::string said = "say:{\"a\":1}\x1f<think>\n";
  for (const char* grammar : {R"("response_format":{"type":"json_object"})", R"("guided_regex":".*")",
                              R"("guided_choice":["{\"a\":1}","b"])"}) {
    const Json followed = message(s.ask(chat(said, grammar)));
    EXPECT_EQ(followed["content"], R"({"a":1})") << grammar;
    EXPECT_FALSE(followed.contains("reasoning_content")) << grammar;
  }
  const Json thought = message(s.ask(chat(said)));
  EXPECT_EQ(thought["content"], "");
  EXPECT_EQ(thought["reasoning_content"], R"({"a":1})");
}

TEST(Tools, StopStringsEndTheContentAndNotTheThoughts) {
  Running s;
  s.model.reasoning = {"<think>", "</think>"};
  s.start();
  const auto said = [&](const std::string& text, const Json& stop, int64_t seed, const std::string& more = "") {
    return message(s.ask(chat("say:" + text, "\"stop\":" + stop.dump() + ",\"seed\":" + std::to_string(seed) + more)));
  };
  const std::string thought = "I think about Q: why?\n\n</think>\n\n", answer = "It is 42.\n\nQ: next";
  for (int64_t seed = 0; seed < 4; ++seed) {  // the fixture's steps emit other numbers of tokens with each seed
    for (const std::string stop : {"Q:", "\n\n", "k>", "42"})
      for (const bool begun : {false, true}) {
        const Json split = said(begun ? thought + answer + "\x1f<think>\n" : " <think>" + thought + answer, stop, seed);
        EXPECT_EQ(split["content"], answer.substr(0, answer.find(stop))) << stop;
        EXPECT_EQ(split["reasoning_content"], "I think about Q: why?") << stop;
      }
    EXPECT_EQ(said(" \n<thing> END", {"\n<", "END"}, seed)["content"], " ") << "what only begins like a thought";
    EXPECT_EQ(said(" <thi", {"hi"}, seed)["content"], " <t");
    const Json unfinished = said("<think>END", "END", seed);
    EXPECT_EQ(unfinished["content"], "");
    EXPECT_EQ(unfinished["reasoning_content"], "END");
    EXPECT_EQ(said("  x  x", "  ", seed, R"(,"min_tokens":2)")["content"], "  x")
        << "the first two spaces are complete before the minimum";
  }
  Running whole;
  whole.start();
  EXPECT_EQ(message(whole.ask(chat("say:<think>a END", R"("stop":["END"])")))["content"], "<think>a ")
      << "without a split everything is content";
}

// Concatenates the tokens in a list of log-probabilities; each token is a single byte here.
std::string joined(const Json& logprobs) {
  std::string text;
  for (const Json& token : logprobs["content"])
    for (const Json& byte : token["bytes"]) text += static_cast<char>(byte.get<int>());
  return text;
}

// The log-probabilities must be those of the tokens in message.content, without thoughts, calls, markers, stop strings
// and EOS.
TEST(Tools, LogprobsAreThoseOfTheContent) {
  Running s;
  s.model.reasoning = {"<think>", "</think>"};
  s.model.tool_format = ToolFormat::kHermes;
  s.start();
  const std::string call = std::string(kCall) + "\n";
  struct Case {
    std::string said, more, content;
  };
  const std::vector<Case> cases = {{"It is 42.", "", "It is 42."},
                                   {"<think>\nIt is it?\n</think>\n\nIt is 42é.", "", "It is 42é."},
                                   {"It is 42. Q: x", R"("stop":["Q:"])", "It is 42. "},
                                   {"<think>Q:</think>It Q: x", R"("stop":["Q:"])", "It "},
                                   {"Well. \n" + call + "So <tool_cal.", kTools, "Well.\nSo <tool_cal."},
                                   {call + call + "After", kTools, "After"},
                                   {call, kTools, ""},
                                   {" <thi", "", " <thi"},
                                   {"It is long", R"("max_tokens":5)", "It is"},
                                   {"cut é", R"("max_tokens":5)", "cut \xEF\xBF\xBD"}};
  for (const Case& c : cases)
    for (const bool stream : {false, true}) {
      const std::string more = R"("logprobs":true,"top_logprobs":0)" + (c.more.empty() ? "" : "," + c.more) +
                               (stream ? R"(,"stream":true)" : "");
      const Response r = s.ask(chat("say:" + c.said, more));
      ASSERT_EQ(r.status, 200) << r.body;
      std::string content, tokens;
      if (stream) {
        for (const Json& event : events_of(r.body)) {
          if (event["choices"].empty()) continue;
          const Json& choice = event["choices"][0];
          content += choice["delta"].value("content", "");
          tokens += joined(choice["logprobs"].is_null() ? Json{{"content", Json::array()}} : choice["logprobs"]);
        }
      } else {
        const Json choice = Json::parse(r.body)["choices"][0];
        content = choice["message"]["content"].is_null() ? "" : choice["message"]["content"].get<std::string>();
        tokens = joined(choice["logprobs"]);
      }
      EXPECT_EQ(content, c.content) << c.said;
      // If the answer ends inside a character, the list has the character's first byte, and the text has U+FFFD for it.
      EXPECT_EQ(tokens, c.said.starts_with("cut") ? "cut \xC3" : c.content) << c.said << (stream ? ", streamed" : "");
    }
}

// Special tokens are left out of an answer's text, except those that mark function calls.
TEST(Tools, MarkersThatAreSpecialTokensAreSeen) {
  const Scratch dir;
  testing::write_byte_tokenizer(dir.root());
  Json file = Json::parse(testing::get(dir / "tokenizer.json"));
  Json token = file["added_tokens"][0];
  token["id"] = kVocab;
  token["content"] = "[TOOL_CALLS]";
  file["added_tokens"].push_back(token);
  testing::put(dir / "tokenizer.json", file.dump());
  const text::Tokenizer tokenizer(dir.root());
  Running s;
  s.model.tokenizer = &tokenizer;
  s.model.vocab_size = kVocab + 1;
  s.model.tool_format = ToolFormat::kMistral;
  s.start();
  const std::string said = R"(say:[TOOL_CALLS][{"name":"f","arguments":{"a":1}}])";
  const Json call = message(s.ask(chat(said, kTools)))["tool_calls"];
  ASSERT_EQ(call.size(), 1u);
  EXPECT_EQ(call[0]["function"]["arguments"], R"({"a":1})");
  EXPECT_EQ(call[0]["id"].get<std::string>().size(), 9u) << "as Mistral's templates demand";
  EXPECT_EQ(message(s.ask(chat(said)))["content"], R"([{"name":"f","arguments":{"a":1}}])");
}

TEST(Tools, ASchemaThatNothingSatisfiesIsRefusedBeforeItRuns) {
  const text::GrammarChecker grammars;
  Running s;
  s.model.tool_format = ToolFormat::kHermes;
  s.model.grammars = &grammars;
  s.start();
  const auto forced = [&](const std::string& parameters) {
    return s.ask(chat("say:x", R"("tools":[{"type":"function","function":{"name":"f","parameters":)" + parameters +
                                   R"(}}],"tool_choice":"required","max_tokens":3)"));
  };
  EXPECT_EQ(
      forced(R"({"type":"object","properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"type":"integer"}}})").status,
      200);
  for (const char* bad :
       {R"({"type":7})", R"({"$ref":"#/$defs/none"})", R"({"$ref":"http://127.0.0.1:1/x"})", R"({"$ref":"#"})",
        R"({"required":["a"],"properties":{"a":{"$ref":"#/$defs/a"}},
                              "$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})"}) {
    const Response refused = forced(bad);
    EXPECT_EQ(refused.status, 400) << bad;
    EXPECT_EQ(Json::parse(refused.body)["error"]["param"], "tools") << bad;
  }
}

}  // namespace
}  // namespace specdec::deploy
