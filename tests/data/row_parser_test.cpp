#include "data/formats/row_parser.h"

#include "tests/data/parsed_rows.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

TrafficRecord parsed(const std::string& json, RowOptions options = {}) { return accepted_row(json, options).record; }

std::string rejected(const std::string& json, RowOptions options = {}) {
  ParsedRow row = parse_one(json, options);
  const auto* why = std::get_if<Rejected>(&row);
  return why ? why->reason : "accepted";
}

TEST(RowParser, OpenAiChatWithMetadata) {
  const TrafficRecord r =
      parsed(R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":[{"type":"text","text":"a"},)"
             R"({"type":"text","text":"b"}]},)"
             R"({"role":"assistant","content":"A","name":"x"}],"id":"q1","conversation_id":77,"created":1767225600,)"
             R"("model":"m","temperature":0.7,"top_p":0.9,)"
             R"("domain":"code","unknown":{"deep":[1]}})");
  EXPECT_EQ(chat_text(r), "system:S;user:ab;assistant:A;");
  EXPECT_EQ(r.id, "q1");
  EXPECT_EQ(r.conversation, "77");
  EXPECT_EQ(r.time, 1767225600);
  EXPECT_EQ(r.writer, "m");
  EXPECT_EQ(r.domain, "code");
  ASSERT_TRUE(r.sampling);
  EXPECT_DOUBLE_EQ(r.sampling->temperature, 0.7);
  EXPECT_DOUBLE_EQ(r.sampling->top_p, 0.9);
}

// A temperature below float's range is dropped, because a record with it would be refused as a whole.
TEST(RowParser, ATemperatureBelowFloatIsLeftOut) {
  TrafficRecord r = parsed(R"({"prompt":"u","response":"a","temperature":1e-300,"top_p":0.5})");
  ASSERT_TRUE(r.sampling);
  EXPECT_EQ(r.sampling->temperature, 1);
  EXPECT_EQ(r.sampling->top_p, 0.5);
  r.id = r.conversation = "i";
  EXPECT_NO_THROW(r.validate("row"));
}

TEST(RowParser, ChatEndsAtTheLastAnswer) {
  EXPECT_EQ(chat_text(parsed(
                R"({"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"},{"role":"user",)"
                R"("content":"more"}]})")),
            "user:u;assistant:a;");
  EXPECT_EQ(rejected(R"({"messages":[{"role":"user","content":"u"}]})"), "no_answer");
  EXPECT_EQ(rejected(R"({"messages":[{"role":"user","content":"u"},{"role":"assistant","content":" \n"}]})"),
            "no_answer");
  EXPECT_EQ(rejected(R"({"messages":[]})"), "no_answer");
}

TEST(RowParser, AnswerBesideTheMessages) {
  const std::string messages = R"("messages":[{"role":"user","content":"u"}])";
  for (const char* response :
       {R"("response":"a")", R"("completion":"a")", R"("response":{"role":"assistant","content":"a"})",
        R"("response":{"choices":[{"message":{"role":"assistant","content":"a"}}]})"})
    EXPECT_EQ(chat_text(parsed("{" + messages + "," + response + "}")), "user:u;assistant:a;") << response;
  EXPECT_EQ(rejected("{" + messages + R"(,"response":7})"), "bad_field");
}

TEST(RowParser, ShareGpt) {
  EXPECT_EQ(
      chat_text(parsed(R"({"system":"S","conversations":[{"from":"human","value":"u"},{"from":"gpt","value":"a"}]})")),
      "system:S;user:u;assistant:a;");
  EXPECT_EQ(
      rejected(R"({"conversations":[{"from":"human","value":"u"},{"from":"function_call","value":"{}"},{"from":"gpt",)"
               R"("value":"a"}]})"),
      "unsupported_tool_calls");
}

TEST(RowParser, ToolCallsKeepTheOrderOfTheirKeys) {
  const std::string call =
      R"([{"id":"c","type":"function","function":{"name":"f","arguments":"{\"z\": 1, \"a\": [2.5]}"}}])";
  const std::string kept = R"([{"id":"c","type":"function","function":{"name":"f","arguments":{"z":1,"a":[2.5]}}}])";
  const std::string
      asked = R"({"role":"user","content":"u"},)",
      answered = R"({"role":"tool","tool_call_id":"c","name":"f","content":"r"},{"role":"assistant","content":"a"})";
  const TrafficRecord whole =
      parsed("{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"messages\":[" + asked +
             R"({"role":"assistant","content":null,"tool_calls":)" + call + "}," + answered + "]}");
  ASSERT_EQ(whole.messages.size(), 4u);
  EXPECT_EQ(whole.messages[1].tool_calls, kept);
  EXPECT_EQ(whole.messages[2].tool_call_id + whole.messages[2].name, "cf");
  EXPECT_EQ(whole.tools, R"([{"type":"function","function":{"name":"f"}}])");
  // The same tools and calls result from a canonical record, from an answer in a separate field, and from a JSON
  // string.
  EXPECT_EQ(to_json(traffic_record_from_json(to_json(parsed(canonical_json([&] {
                                               Json j = to_json(whole);
                                               j["id"] = j["conversation"] = "i";
                                               return j;
                                             }()))),
                                             "r"))["messages"],
            to_json(whole)["messages"]);
  EXPECT_EQ(
      parsed("{\"messages\":[" + asked.substr(0, asked.size() - 1) +
             R"(],"response":{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":)" + call + "}}]}}")
          .messages.back()
          .tool_calls,
      kept);
  EXPECT_EQ(
      parsed(Json{{"messages", "[" + asked + R"({"role":"assistant","content":"","tool_calls":)" + call + "}]"}}.dump())
          .messages.back()
          .tool_calls,
      kept);
  const auto with = [&](const std::string& calls, const char* role = "assistant") {
    return "{\"messages\":[" + asked + R"({"role":")" + role + R"(","content":"x","tool_calls":)" + calls +
           R"(},{"role":"assistant","content":"a"}]})";
  };
  EXPECT_EQ(parsed(with(R"([{"function":{"name":"f","arguments":"{no json"}}])")).messages[1].tool_calls,
            R"([{"function":{"name":"f","arguments":"{no json"}}])");
  for (const char* none : {"[]", "null", "\"\"", "\"[]\""})
    EXPECT_EQ(parsed(with(none)).messages[1].tool_calls, "") << none;
  for (const char* odd : {R"([{"name":"f"}])", R"([7])", R"({"a":1})", "7"})
    EXPECT_EQ(rejected(with(odd)), "unsupported_tool_calls") << odd;
  EXPECT_EQ(rejected(with(call, "user")), "unsupported_tool_calls");
  EXPECT_EQ(rejected(R"({"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"",)"
                     R"("function_call":{"name":"f"}}]})"),
            "unsupported_tool_calls");
  // Rows with unsupported tools are refused, because without the tools the prompt would differ from the one that was
  // served.
  for (const char* odd : {R"("tools":[{"name":"flat"}])", R"("tools":[{"type":"function","name":"f","parameters":{}}])",
                          R"("functions":[{"name":"f","parameters":{}}])"})
    EXPECT_EQ(rejected("{" + std::string(odd) +
                       R"(,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}]})"),
              "unsupported_tool_calls")
        << odd;
  EXPECT_EQ(rejected(R"({"functions":[],"messages":[{"role":"user","content":"u"},{"role":"assistant",)"
                     R"("content":"a"}]})"),
            "accepted");
}

// Returns a chat row with this answer and these additional fields.
std::string chat_row(const std::string& answer, const std::string& others = "") {
  return R"({"messages":[{"role":"user","content":"u"},)" + answer + "]" + others + "}";
}

TEST(RowParser, ThoughtsUnderTheirThreeNames) {
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    const std::string message = R"({"role":"assistant","content":"a",")" + std::string(name) + R"(":"hm"})",
                      whole = R"({"choices":[{"message":)" + message + "}]}";
    for (const std::string& row :
         {chat_row(message), R"({"messages":[{"role":"user","content":"u"}],"response":)" + whole + "}",
          R"({"call_type":"acompletion","startTime":1,"messages":[{"role":"user","content":"u"}],"response":)" + whole +
              "}",
          R"({"type":"GENERATION","traceId":"t","input":[{"role":"user","content":"u"}],"output":)" + message + "}"})
      EXPECT_EQ(parsed(row).messages.back().reasoning_content, "hm") << row;
  }
  const auto thought = [](const std::string& fields) {
    return parsed(chat_row(R"({"role":"assistant","content":"a",)" + fields + "}")).messages.back().reasoning_content;
  };
  EXPECT_EQ(thought(R"("reasoning_content":null,"reasoning":"hm")"), "hm");
  EXPECT_EQ(thought(R"("reasoning_content":"","thinking":true,"reasoning":{})"), "");
  EXPECT_EQ(rejected(chat_row(R"({"role":"assistant","content":"a","reasoning":[{"text":"hm"}]})")),
            "unsupported_content");
  EXPECT_EQ(rejected(R"({"type":"GENERATION","traceId":"t","input":"q","output":{"role":"assistant","content":"a",)"
                     R"("reasoning":"hm"}})"),
            "unsupported_content");  // a raw prompt has no field for a thought
}

TEST(RowParser, WhyAnAnswerEnded) {
  const auto reason = [](const std::string& response) {
    return parsed(R"({"messages":[{"role":"user","content":"u"}],"response":)" + response + "}").finish_reason;
  };
  const auto choice = [&](const std::string& fields) {
    return reason(R"({"choices":[{"message":{"role":"assistant","content":"a"})" + fields + "}]}");
  };
  EXPECT_EQ(choice(""), "");
  EXPECT_EQ(choice(R"(,"finish_reason":null)"), "");
  EXPECT_EQ(choice(R"(,"finish_reason":"stop")"), "stop");
  EXPECT_EQ(choice(R"(,"finish_reason":"stop","stop_reason":null)"), "stop");
  EXPECT_EQ(choice(R"(,"finish_reason":"stop","stop_reason":128009)"), "stop");
  EXPECT_EQ(choice(R"(,"finish_reason":"stop","stop_reason":"\n\n")"), "stop_string");
  EXPECT_EQ(choice(R"(,"finish_reason":"stop","matched_stop":"END")"), "stop_string");
  EXPECT_EQ(choice(R"(,"finish_reason":{"type":"stop","matched":"END"})"), "stop_string");
  EXPECT_EQ(choice(R"(,"finish_reason":{"type":"stop","matched":2})"), "stop");
  EXPECT_EQ(choice(R"(,"finish_reason":"tool_calls")"), "stop");
  EXPECT_EQ(choice(R"(,"finish_reason":"length")"), "length");
  EXPECT_EQ(choice(R"(,"finishReason":"MAX_TOKENS")"), "length");
  EXPECT_EQ(choice(R"(,"finish_reason":"content_filter")"), "content_filter");
  EXPECT_EQ(choice(R"(,"finish_reason":"abort")"), "other");
  EXPECT_EQ(choice(R"(,"finish_reason":{"type":"length","length":9})"), "length");
  for (const auto& [word, expected] :
       {std::pair("end_turn", "stop"), std::pair("tool_use", "stop"), std::pair("max_tokens", "length"),
        std::pair("stop_sequence", "stop_string"), std::pair("refusal", "content_filter")})
    EXPECT_EQ(reason(R"({"role":"assistant","content":"a","stop_reason":")" + std::string(word) + "\"}"), expected);
  const auto responses = [&](const std::string& fields) {
    return reason(R"({"output":[{"type":"message","content":[{"type":"output_text","text":"a"}]}])" + fields + "}");
  };
  EXPECT_EQ(responses(R"(,"status":"completed","incomplete_details":null)"), "stop");
  EXPECT_EQ(responses(R"(,"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"})"), "length");
  EXPECT_EQ(responses(R"(,"status":"failed")"), "other");
  EXPECT_EQ(parsed(chat_row(R"({"role":"assistant","content":"a"})", R"(,"finish_reason":"length")")).finish_reason,
            "length");
  EXPECT_EQ(parsed(R"({"instruction":"i","output":"o","status":"approved"})").finish_reason, "");
  const auto sglang = [](const std::string& answer) {
    return parsed(R"({"id":"i","request_parameters":"{\"text\":\"p\"}",)" + answer + "}").finish_reason;
  };
  EXPECT_EQ(sglang(R"("text":"a","finish_reason":{"type":"length"})"), "length");
  EXPECT_EQ(sglang(R"("out":{"text":"a","meta_info":{"finish_reason":{"type":"stop"}}})"), "stop");
}

TEST(RowParser, MessagesThatTheLogSaysNotToLearn) {
  const auto unlearnt = [](const std::string& fields) {
    return parsed(chat_row(R"({"role":"assistant","content":"a")" + fields + "}")).messages.back().unlearnt;
  };
  EXPECT_TRUE(unlearnt(R"(,"weight":0)"));
  EXPECT_TRUE(unlearnt(R"(,"trainable":false)"));
  for (const char* fields : {"", R"(,"weight":1)", R"(,"weight":null)", R"(,"trainable":true)"})
    EXPECT_FALSE(unlearnt(fields)) << fields;
}

TEST(RowParser, ContentThatIsMissingIsNotAnEmptyTurn) {
  const auto with_user = [](const std::string& content) {
    return rejected(R"({"messages":[{"role":"user")" + content + R"(},{"role":"assistant","content":"a"}]})");
  };
  for (const char* content : {"", R"(,"content":null)", R"(,"content":[])", R"(,"text":"u")"})
    EXPECT_EQ(with_user(content), "bad_field") << content;
  EXPECT_EQ(with_user(R"(,"content":"")"), "accepted") << "somebody sent an empty message";
  EXPECT_EQ(rejected(R"({"conversations":[{"from":"human"},{"from":"gpt","value":"a"}]})"), "bad_field");
  EXPECT_EQ(rejected(R"({"messages":[{"role":"user","content":"u"},{"role":"assistant","content":null},)"
                     R"({"role":"user","content":"v"},{"role":"assistant","content":"a"}]})"),
            "accepted");  // the turn is rendered but not learnt
}

TEST(RowParser, PlaceholdersOfAGatewayAreNoTraffic) {
  EXPECT_EQ(rejected(chat_row(R"({"role":"assistant","content":"redacted-by-litellm"})")), "replaced_content");
  EXPECT_EQ(rejected(R"({"messages":[{"role":"user","content":"default-message-value"},)"
                     R"({"role":"assistant","content":"a"}]})"),
            "replaced_content");
  EXPECT_EQ(rejected(R"({"prompt":"redacted-by-litellm","completion":"a"})"), "replaced_content");
  EXPECT_EQ(rejected(chat_row(R"({"role":"assistant","content":"It says redacted-by-litellm."})")), "accepted");
}

TEST(RowParser, VariablesOfTheTemplate) {
  const std::string kwargs = R"("chat_template_kwargs":{"enable_thinking":false})",
                    kept = R"({"enable_thinking":false})", answer = R"({"role":"assistant","content":"a"})";
  EXPECT_EQ(parsed(chat_row(answer, "," + kwargs)).template_kwargs, kept);
  EXPECT_EQ(parsed(chat_row(answer, ",\"extra_body\":{" + kwargs + "}")).template_kwargs, kept);
  EXPECT_EQ(parsed(chat_row(answer, R"(,"chat_template_kwargs":{})")).template_kwargs, "");
  EXPECT_EQ(rejected(chat_row(answer, R"(,"chat_template_kwargs":[1])")), "bad_field");
  Json many = Json::object();
  for (int i = 0; i < 4097; ++i) many["k" + std::to_string(i)] = i;
  EXPECT_EQ(rejected(chat_row(answer, ",\"chat_template_kwargs\":" + many.dump())), "bad_field");
  EXPECT_EQ(parsed(R"({"call_type":"acompletion","model_parameters":{)" + kwargs +
                   R"(},"messages":[{"role":"user","content":"u"}],"response":)" + answer + "}")
                .template_kwargs,
            kept);
  EXPECT_EQ(parsed(R"({"request_body":{"messages":[{"role":"user","content":"u"}],)" + kwargs +
                   R"(},"response_body":)" + answer + "}")
                .template_kwargs,
            kept);
}

TEST(RowParser, ToolCallsAndToolsAreBounded) {
  const auto keys = [](int n) {
    std::string text = "{";
    for (int i = 0; i < n; ++i) text += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":1";
    return text + "}";
  };
  const auto list = [](const std::string& arguments) {
    return R"([{"function":{"name":"f","arguments":)" + arguments + "}}]";
  };
  const auto row = [](const std::string& calls, const std::string& tools) {
    return R"({"tools":)" + tools +
           R"(,"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a","tool_calls":)" + calls +
           "}]}";
  };
  const std::string fine = list(keys(4096)), many = list(keys(4097)), text = list(Json(keys(4097)).dump());
  EXPECT_EQ(rejected(row(fine, fine)), "accepted");
  EXPECT_EQ(rejected(row(many, fine)), "unsupported_tool_calls");
  EXPECT_EQ(rejected(row(fine, many)), "unsupported_tool_calls");
  // Arguments given as text are also refused if they are JSON that cannot be passed to the template unchanged.
  EXPECT_EQ(rejected(row(text, "[]")), "unsupported_tool_calls");
  for (const char* whole : {R"({"a":1,"a":2})", R"({"a":"\ud800"})", R"({"a":1e400})"})
    EXPECT_EQ(rejected(row(list(Json(whole).dump()), "[]")), "unsupported_tool_calls") << whole;
  for (const char* cut : {R"({"a":1,"a")", R"({"a":"\ud8)", R"({"a":1e)", R"({"a":[1,2})"})
    EXPECT_EQ(rejected(row(list(Json(cut).dump()), "[]")), "accepted") << cut;
  // A list inside a string may exceed 1 MiB although its row is accepted, and its numbers may become longer when they
  // are written again. Such lists are refused, too.
  const std::string large = Json(list("\"" + std::string(size_t{1} << 20, 'x') + "\"")).dump();
  EXPECT_EQ(rejected(row(large, "[]")), "unsupported_tool_calls");
  EXPECT_EQ(rejected(row(fine, large)), "unsupported_tool_calls");
  std::string numbers = "[1e14";
  for (int i = 0; i < 100'000; ++i) numbers += ",1e14";
  EXPECT_EQ(rejected(row(list(numbers + "]"), "[]")), "unsupported_tool_calls");
}

TEST(RowParser, ToolsBesideTheParametersOfGateways) {
  const std::string tools = R"([{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}])";
  const std::string messages = R"([{"role":"user","content":"u"}])", answer = R"({"role":"assistant","content":"a"})";
  const auto of = [&](const std::string& format, const std::string& parameters) {
    return parsed(format == "litellm" ? R"({"call_type":"acompletion","model_parameters":)" + parameters +
                                            ",\"messages\":" + messages + ",\"response\":" + answer + "}"
                                      : R"({"type":"GENERATION","traceId":"t",")" + format + "\":" + parameters +
                                            ",\"input\":" + messages + ",\"output\":" + answer + "}")
        .tools;
  };
  for (const char* format : {"litellm", "modelParameters", "model_parameters"}) {
    EXPECT_EQ(of(format, "{\"tools\":" + tools + "}"), tools) << format;
    EXPECT_EQ(of(format, Json("{\"tools\":" + tools + "}").dump()), tools) << format;
    EXPECT_EQ(of(format, "{\"temperature\":1}"), "") << format;
  }
  // The request's own tools have precedence.
  EXPECT_EQ(parsed(R"({"call_type":"acompletion","model_parameters":{"tools":[{"function":{"name":"g"}}]},)"
                   R"("messages":{"tools":)" +
                   tools + ",\"messages\":" + messages + "},\"response\":" + answer + "}")
                .tools,
            tools);
}

TEST(RowParser, PromptFamilies) {
  for (const char* row : {R"({"prompt":"p","completion":"c"})", R"({"prompt":"p","response":"c"})"}) {
    const TrafficRecord r = parsed(row);
    EXPECT_EQ(r.prompt + "|" + r.response, "p|c") << row;
  }
  const std::string alpaca = R"({"instruction":"do","input":"this","output":"done"})";
  EXPECT_EQ(parsed(alpaca).prompt, "do\nthis\n");
  EXPECT_EQ(parsed(alpaca).response, "done");
  RowOptions chat;
  chat.instructions_as_chat = true;
  EXPECT_EQ(chat_text(parsed(alpaca, chat)), "user:do\n\nthis;assistant:done;");
  EXPECT_EQ(parsed(R"({"instruction":"do","input":"","response":"done"})").prompt, "do\n");
  const std::string turns = R"({"instruction":"do","output":"done","system":"S","history":[["a","b"],["c","d"]]})";
  EXPECT_EQ(chat_text(parsed(turns, chat)), "system:S;user:a;assistant:b;user:c;assistant:d;user:do;assistant:done;");
  EXPECT_EQ(chat_text(parsed(R"({"instruction":"do","output":"done","system":"","history":"[[\"a\",\"b\"]]"})", chat)),
            "user:a;assistant:b;user:do;assistant:done;");
  EXPECT_EQ(rejected(turns), "unsupported_content") << "without a template there are no turns";
  EXPECT_EQ(rejected(R"({"instruction":"do","output":"done","history":[["a"]]})", chat), "bad_field");
  EXPECT_EQ(chat_text(parsed(R"({"instruction":"do","output":"done","history":[]})", chat)), "user:do;assistant:done;");
  EXPECT_EQ(chat_text(parsed(
                R"({"prompt":[{"role":"user","content":"u"}],"completion":[{"role":"assistant","content":"a"}]})")),
            "user:u;assistant:a;");
  EXPECT_EQ(rejected(R"({"prompt":"p","completion":""})"), "no_answer");
  EXPECT_EQ(rejected(R"({"prompt":"p","completion":{"a":1}})"), "bad_field");
}

TEST(RowParser, TextAndTraffic) {
  EXPECT_EQ(parsed(R"({"text":" once "})").text, " once ");
  EXPECT_EQ(rejected(R"({"text":"  "})"), "empty");
  TrafficRecord original;
  original.id = "i";
  original.conversation = "c";
  original.time = 5;
  original.messages = {{"user", "u"}, {"assistant", "a"}};
  original.sampling = SamplingOptions{0.5, 3, 0.9, 0.1};
  const TrafficRecord read = parsed(canonical_json(to_json(original)));
  EXPECT_EQ(to_json(read), to_json(original));
  EXPECT_EQ(rejected(R"({"schema":"specdec.traffic/9","id":"i","text":"t"})"), "bad_field");
  EXPECT_EQ(rejected(R"({"schema":"specdec.rejects/1","id":"i","rejects":[]})"), "other_event");
  EXPECT_EQ(rejected(R"({"schema":"specdec.acceptance/1","t":1})"), "bad_field");
}

TEST(RowParser, RefusalsNameAReasonAndNeverContent) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{\"text\": SECRET}", "invalid_json"},
      {"{\"text\": \"SECRET", "invalid_json"},
      {"{\"text\":\"a\",\"text\":\"SECRET\"}", "invalid_json"},
      {"\"SECRET\"", "not_an_object"},
      {"[1]", "not_an_object"},
      {"{\"text\":\"SECRET\xFF\"}", "invalid_utf8"},
      {R"({"text":"\ud800 SECRET"})", "invalid_json"},
      {R"({"text":"\udc00 SECRET"})", "invalid_json"},
      {R"({"\udc00":"SECRET"})", "invalid_json"},
      {R"({"text":1e999})", "invalid_json"},
      {R"({"foo":"SECRET"})", "unknown_format"},
      {R"({"text":["SECRET"]})", "bad_field"},
      {R"({"messages":"SECRET"})", "bad_field"},
      {R"({"messages":["SECRET"]})", "bad_field"},
      {R"({"messages":[{"content":"SECRET"}]})", "bad_field"},
      {R"({"messages":[{"role":"SECRET","content":"x"}]})", "bad_field"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"SECRET"}}]},)"
       R"({"role":"assistant","content":"a"}]})",
       "unsupported_content"},
      {R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"SECRET"}]},{"role":"assistant",)"
       R"("content":"a"}]})",
       "unsupported_tool_calls"},
      {R"({"messages":[{"role":"assistant","content":"x","tool_calls":"[SECRET"},{"role":"assistant","content":"a"}]})",
       "unsupported_tool_calls"},
      {R"({"schema":"specdec.traffic/1","id":"i","messages":[{"role":"assistant","content":"x",)"
       R"("tool_calls":"[SECRET"}]})",
       "bad_field"},
      {R"({"schema":"specdec.traffic/1","id":"i","time":"SECRET","text":"t"})", "bad_field"},
      {R"({"schema":"specdec.traffic/1","id":"i","messages":[{"role":"SECRET","content":"t"}]})", "bad_field"},
      {R"({"opt_out":true,"text":"SECRET"})", "opted_out"},
      {R"({"opt_out":"True","text":"SECRET"})", "opted_out"},
      {std::string(200, '[') + std::string(200, ']'), "invalid_json"},
  };
  for (const auto& [row, reason] : cases) {
    const ParsedRow result = parse_one(row, {});
    const auto* why = std::get_if<Rejected>(&result);
    ASSERT_TRUE(why) << row;
    EXPECT_EQ(why->reason, reason) << row;
    EXPECT_EQ(why->detail.find("SECRET"), std::string::npos) << row << ": " << why->detail;
  }
}

TEST(RowParser, ExplicitFormatDecidesAgainstTheKeys) {
  const std::string both =
      R"({"text":"t","messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}]})";
  EXPECT_FALSE(parsed(both).messages.empty());
  RowOptions text;
  text.format = parse_format_name("text");
  EXPECT_EQ(parsed(both, text).text, "t");
  EXPECT_EQ(rejected(R"({"prompt":"p","completion":"c"})", text), "bad_field");
  EXPECT_THROW(parse_format_name("csv"), Error);
}

TEST(RowParser, DomainFieldAndTimes) {
  RowOptions team;
  team.domain_field = "team";
  EXPECT_EQ(parsed(R"({"text":"t","team":"search","domain":"x"})", team).domain, "search");
  EXPECT_EQ(rejected(R"({"text":"t","domain":")" + std::string(200, 'd') + "\"}"), "bad_field");
  EXPECT_EQ(parsed(R"({"text":"t","timestamp":1767225600123})").time, 1767225600);
  EXPECT_EQ(parsed(R"({"text":"t","created_at":"2026-01-01T01:00:00+01:00"})").time, 1767225600);
  EXPECT_EQ(parsed(R"({"text":"t","time":"yesterday"})").time, 0);
  EXPECT_EQ(parsed(R"({"text":"t","time":-5})").time, 0);
  // The expected values are those of Python's datetime.fromisoformat().
  for (const auto& [text, seconds] :
       std::vector<std::pair<const char*, int64_t>>{{"2026-01-01T10:00:00+0530", 1767241800},
                                                    {"2026-01-01T10:00:00+05:30", 1767241800},
                                                    {"2026-01-01T10:00:00-05", 1767279600},
                                                    {"2026-01-01T10:00Z", 1767261600},
                                                    {"2026-01-01 10:00", 1767261600},
                                                    {"2026-01-01T10", 1767261600},
                                                    {"2026-01-01", 1767225600},
                                                    {"20260101", 1767225600},
                                                    {"20260101T100000Z", 1767261600},
                                                    {"20260101T1000", 1767261600},
                                                    {"2026-01-01T10:00:00,5Z", 1767261600},
                                                    {"2026-01-01T10:00:00+01:00[Europe/Paris]", 1767258000},
                                                    {"2026-01-01T10:00:00Z[UTC]", 1767261600},
                                                    {"2026-01-01T10:00:00Z[UTC][u-ca=iso8601]", 1767261600},
                                                    {"2026-01-01 9:05:00", 1767258300},
                                                    {"2026-01-01T10:00:00Z ", 1767261600},
                                                    {" 2026-01-01 10:00\\n", 1767261600},
                                                    {"1767261600.5", 1767261600},
                                                    {"1767261600500", 1767261600}})
    EXPECT_EQ(parsed(R"({"text":"t","time":")" + std::string(text) + "\"}").time, seconds) << text;
  for (const char* bad : {"2026-13-01",
                          "2026-1-1",
                          "2026-01",
                          "2026-01-01T",
                          "2026-01-01T10:",
                          "2026-01-01T10:00:",
                          "2026-01-01T10:00:00.",
                          "2026-01-01T10:00:00+",
                          "2026-01-01T10:00:00+99:00",
                          "2026-01-01Z",
                          "2026-01-01T10:00:00Zulu",
                          "2026-01-01T10:00:00[Europe/Paris]",
                          "2026-01-01T10:00:00Z[UTC",
                          "2026-01-01T10:00:00Z[UTC]x",
                          "2026-01-01T9",
                          "2026-01-01T905",
                          " ",
                          "",
                          "10:00",
                          "1e9",
                          "99999999"})
    EXPECT_EQ(parse_time(bad), -1) << bad;
  EXPECT_EQ(parse_time("2026-01-01 00:00:00"), 1767225600);
  EXPECT_EQ(parse_time("2026-01-01T00:00:00.250Z"), 1767225600);
  EXPECT_EQ(parse_time("2026-02-30T00:00:00Z"), -1);
  EXPECT_EQ(parse_time("2026-01-01T25:00:00Z"), -1);
  EXPECT_EQ(parse_time("2026-01-01T00:00:00 nonsense"), -1);
}

TEST(RowParser, CharactersAreUnicodeOnes) {
  EXPECT_EQ(content_characters(parsed(R"({"text":"é€🙂"})")), 3);
  EXPECT_EQ(content_characters(parsed(R"({"prompt":"ab","completion":"é"})")), 3);
}

}  // namespace
}  // namespace specdec::data
