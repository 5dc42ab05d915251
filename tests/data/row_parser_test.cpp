#include "data/row_parser.h"

#include "tests/data/toy.h"

namespace specdec::data {
namespace {

ParsedRow parse_one(const std::string& json, const RowOptions& options) {
  std::vector<ParsedRow> rows = parse_line(json, options).rows;
  EXPECT_EQ(rows.size(), 1u) << json;
  return rows.empty() ? Rejected{} : std::move(rows.front());
}

TrafficRecord parsed(const std::string& json, RowOptions options = {}) {
  ParsedRow row = parse_one(json, options);
  if (const auto* why = std::get_if<Rejected>(&row)) {
    ADD_FAILURE() << json << " was rejected: " << why->reason << " " << why->detail;
    return {};
  }
  return std::get<ParsedRecord>(row).record;
}

std::string rejected(const std::string& json, RowOptions options = {}) {
  ParsedRow row = parse_one(json, options);
  const auto* why = std::get_if<Rejected>(&row);
  return why ? why->reason : "accepted";
}

std::string chat_text(const TrafficRecord& r) {
  std::string text;
  for (const ChatMessage& m : r.messages) text += m.role + ":" + m.content + ";";
  return text;
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

// No sampler can use a temperature below float's range, and a record that held it would be refused as a whole.
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
  // The same tools and calls come back from a canonical record, from an answer beside the messages, and from a JSON
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
  EXPECT_EQ(parsed(R"({"tools":[{"name":"flat"}],"messages":[{"role":"user","content":"u"},{"role":"assistant",)"
                   R"("content":"a"}]})")
                .tools,
            "");  // no template renders such a list
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
  EXPECT_EQ(parsed(row(text, "[]")).messages[1].tool_calls, text);  // the text is not JSON, so it is not parsed
  // A list in a string may be larger than the rows that the fast parser takes, and its numbers may grow when they are
  // written again. Such lists are refused, too.
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
  // Tools of the request itself have priority.
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
