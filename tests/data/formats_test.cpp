// Reads the same three conversations in every format (fixtures/, made by fixtures/make_fixtures.py) and compares the
// canonical records, which must be equal.
#include <set>

#include "data/formats/row_parser.h"
#include "data/redact/id_key.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

struct Talk {
  std::vector<ChatMessage> messages;
  std::string id, conversation, tenant;
  int64_t time;
};

const std::vector<Talk>& talks() {
  static const std::vector<Talk> all = {
      {{{"system", "You are a terse assistant."}, {"user", "What is the capital of France?"}, {"assistant", "Paris."}},
       "req-1",
       "conv-1",
       "team-a",
       1767225600},
      {{{"user", "Count to three."},
        {"assistant", "1, 2, 3"},
        {"user", "And in German?"},
        {"assistant", "eins, zwei, drei – \"fertig\" 🙂"}},
       "req-2",
       "conv-2",
       "team-b",
       1767229200},
      {{{"user", "Write a C loop."}, {"assistant", "```c\nfor (int i = 0; i < 3; ++i) {\n\tputs(\"x\\\\y\");\n}\n```"}},
       "req-3",
       "conv-3",
       "team-a",
       1767232800}};
  return all;
}

// Returns the prompt of the formats without roles, whose fixtures have the earlier messages as one text.
std::string flat_prompt(const Talk& talk) {
  std::string text;
  for (size_t i = 0; i + 1 < talk.messages.size(); ++i)
    text += "<|" + talk.messages[i].role + "|>\n" + talk.messages[i].content + "\n";
  return text + "<|assistant|>\n";
}

// The output of `data ingest --records`.
struct Ingested {
  std::vector<TrafficRecord> records;
  std::vector<std::string> tenants;
  IngestReport report;
};
Ingested ingest_records(const Scratch& scratch, const std::vector<fs::path>& files,
                        const std::string& format = "auto") {
  IngestOptions options;
  for (const fs::path& f : files) options.sources.push_back(f.string());
  options.out = (scratch / "out").string();
  options.records = true;
  options.redact = false;
  options.format = format;
  Ingested made{{}, {}, ingest(options, {}).report};
  std::istringstream in(slurp(scratch / "out" / "records.jsonl"));
  for (std::string line; std::getline(in, line);) {
    const Json json = Json::parse(line);
    made.records.push_back(traffic_record_from_json(json, "records.jsonl"));
    made.tenants.push_back(json.value("tenant", ""));
  }
  return made;
}

// States which metadata the fixtures of a format have besides the content.
struct Carries {
  bool id = true, conversation = true, time = true, sampling = true, writer = true;
};

void expect_same(const Ingested& made, bool roles, const Carries& carries, const std::string& at) {
  ASSERT_EQ(made.records.size(), talks().size()) << at;
  for (const TrafficRecord& r : made.records) {
    const auto is_it = [&](const Talk& t) {
      return roles ? !r.messages.empty() && r.messages.back().content == t.messages.back().content
                   : r.text + r.response == t.messages.back().content ||
                         r.text == flat_prompt(t) + t.messages.back().content;
    };
    const auto talk = std::find_if(talks().begin(), talks().end(), is_it);
    ASSERT_NE(talk, talks().end()) << at << ": " << to_json(r).dump();
    TrafficRecord expected;
    if (roles)
      expected.messages = talk->messages;
    else if (!r.text.empty())
      expected.text = flat_prompt(*talk) + talk->messages.back().content;
    else
      expected.prompt = flat_prompt(*talk), expected.response = talk->messages.back().content;
    expected.id = carries.id ? talk->id : r.id;
    expected.conversation = carries.conversation ? talk->conversation : r.id;
    expected.time = carries.time ? talk->time : 0;
    expected.writer = carries.writer ? "tiny-llama" : "";
    EXPECT_FALSE(r.answer_was_cut()) << at << ": " << r.finish_reason;
    expected.finish_reason = r.finish_reason;  // only some fixtures have a finish_reason
    if (carries.sampling) expected.sampling = SamplingOptions{0.7, 0, 0.9, 0};
    EXPECT_EQ(to_json(r), to_json(expected)) << at;
  }
}

struct Case {
  const char* file;
  Carries carries;
  bool roles = true;
  bool tenants = true;
  int64_t rejected = 0;
};
constexpr Carries kNothing{false, false, false, false, false};

// The fixtures of every format. The file names of one batch are separated by a space.
const std::vector<std::pair<std::string, std::vector<Case>>>& cases() {
  static const std::vector<std::pair<std::string, std::vector<Case>>> all = {
      {"traffic",
       {{"recorded.jsonl", {}, true, false}, {"with-tenant.jsonl", {}}, {"prompts.jsonl", {}, false, false}}},
      {"chat",
       {{"fine-tuning.jsonl", {}}, {"parts.json", {}}, {"answer-beside.jsonl", {}}, {"choices-beside.jsonl", {}}}},
      {"exchange", {{"bodies.jsonl", {}}, {"strings.jsonl", {}}, {"array.json", {}}}},
      {"sharegpt", {{"list.json", kNothing, true, false}, {"system-apart.jsonl", {}}, {"roles.jsonl", {}}}},
      {"alpaca",
       {{"alpaca_data.json", kNothing, true, false},
        {"response.jsonl", {}},
        {"no-input.jsonl", kNothing, true, false}}},
      {"prompt",
       {{"completion.jsonl", kNothing, false, false}, {"response.jsonl", {}, false}, {"conversational.jsonl", {}}}},
      {"text",
       {{"rows.jsonl", kNothing, false, false},
        {"with-metadata.jsonl", {}, false},
        {"array.json", kNothing, false, false}}},
      {"openai-batch",
       {{"chat.input.jsonl chat.output.jsonl", {true, false}, true, false},
        {"short.output.jsonl short.input.jsonl", {true, false}, true, false, 2},
        {"mixed.jsonl", {true, false}, true, false}}},
      {"litellm", {{"s3-objects.json", {}}, {"proxy.jsonl", {}, true, true, 2}, {"strings.jsonl", {}}}},
      {"langfuse", {{"observations_v2.jsonl", {}, true, true, 1}, {"ui-export.json", {}}, {"api.jsonl", {}}}},
      {"otel",
       {{"otlp-spans.jsonl", {}, true, true, 1},
        {"otlp-events.json", {}},
        {"openllmetry-console.json", {}},
        {"content-events-1.28.jsonl", {}}}},
      {"helicone", {{"export.jsonl", {}}, {"api.json", {}}, {"strings.jsonl", {}, true, true, 1}}},
      {"portkey", {{"export.jsonl", {}}, {"strings.jsonl", {}, true, true, 1}, {"log-object.json", {}}}},
      {"sglang",
       {{"with-text.jsonl", {true, false, true, true, false}, false, false},
        {"with-out.jsonl", {true, false, true, true, true}, false, false},
        {"output-text.json", {true, false, true, true, false}, false, false}}}};
  return all;
}

class Formats : public testing::TestWithParam<size_t> {};
std::string format_of(const testing::TestParamInfo<size_t>& info) {
  std::string name = cases()[info.param].first;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

TEST_P(Formats, GiveTheSameCanonicalRecords) {
  const auto& [format, files] = cases()[GetParam()];
  ASSERT_GE(files.size(), 3u);
  for (const Case& c : files) {
    const Scratch scratch;
    std::vector<fs::path> paths;
    std::istringstream names(c.file);
    for (std::string name; names >> name;) paths.push_back(fixtures() / format / name);
    Ingested made = ingest_records(scratch, paths);
    bool roles = c.roles;
    // Instruction rows have no roles; as a chat each is one question and its answer.
    if (format == "alpaca") {
      roles = false;
      for (TrafficRecord& r : made.records) {
        ASSERT_EQ(r.messages.size(), 2u);
        r.prompt = r.messages[0].content;
        r.response = r.messages[1].content;
        r.messages.clear();
      }
    }
    expect_same(made, roles, c.carries, format + "/" + c.file);
    const std::set<std::string> tenants(made.tenants.begin(), made.tenants.end());
    const IdKey key = HeldSalt(salt_file(scratch / "out")).key();
    EXPECT_EQ(tenants, c.tenants ? (std::set<std::string>{key.tenant("team-a"), key.tenant("team-b")})
                                 : std::set<std::string>{""})
        << c.file;
    // Every row is recognised as its format. Rows other than the three conversations are refused with a reason.
    std::map<std::string, int64_t> formats;
    int64_t rejected = 0;
    for (const SourceCounts& s : made.report.sources)
      for (const auto& [name, n] : s.formats) formats[name] += n;
    for (const auto& [reason, n] : made.report.rejects) rejected += n;
    EXPECT_EQ(formats, (std::map<std::string, int64_t>{{format, 3 + c.rejected}})) << c.file;
    EXPECT_EQ(rejected, c.rejected) << c.file;
    // Naming the right format gives the same result; naming another one is an error.
    EXPECT_EQ(ingest_records(scratch, paths, format).records.size(), 3u);
    EXPECT_THROW(ingest_records(scratch, paths, format == "litellm" ? "alpaca" : "litellm"), Error) << c.file;
  }
}
INSTANTIATE_TEST_SUITE_P(All, Formats, testing::Range<size_t>(0, cases().size()), format_of);

TEST(FormatTable, EveryFormatHasItsFixturesAndItsName) {
  EXPECT_EQ(cases().size(), traffic_formats().size());
  for (const auto& [format, files] : cases()) EXPECT_EQ(parse_format_name(format)->name, format);
  EXPECT_EQ(parse_format_name("auto"), nullptr);
  EXPECT_THROW(parse_format_name("csv"), Error);
}

TEST(Sglang, MetricsAsWrittenHoldNoAnswers) {
  const Scratch scratch;
  try {
    ingest_records(scratch, {fixtures() / "sglang/sglang-request-metrics-20260101_00.jsonl"});
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no_answer 3"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("SGLang"), std::string::npos) << e.what();
  }
}

TEST(Formats, AreMixedInOneFileRowByRow) {
  const Scratch scratch;
  std::string all;
  for (const char* file :
       {"chat/fine-tuning.jsonl", "litellm/proxy.jsonl", "otel/otlp-spans.jsonl", "helicone/export.jsonl"})
    all += slurp(fixtures() / file);
  const Ingested made = ingest_records(scratch, {scratch.write("mixed.jsonl", all)});
  EXPECT_EQ(made.report.duplicates, 9);  // all files have the same conversations
  EXPECT_EQ(made.records.size(), 3u);
  EXPECT_EQ(made.report.sources[0].formats,
            (std::map<std::string, int64_t>{{"chat", 3}, {"litellm", 5}, {"otel", 4}, {"helicone", 3}}));
}

std::string refusal(const std::string& row, const char* format = "auto") {
  RowOptions options;
  options.format = parse_format_name(format);
  const ParsedLine line = parse_line(row, options);
  const auto* why = line.rows.empty() ? nullptr : std::get_if<Rejected>(&line.rows.front());
  return why ? why->reason : "accepted";
}

TEST(Formats, RefusalsOfGatewayAndTraceRows) {
  EXPECT_EQ(refusal(R"({"custom_id":"a","response":{"status_code":500}})"), "failed_request");
  EXPECT_EQ(refusal(R"({"custom_id":"a","error":{"code":"x"}})"), "failed_request");
  EXPECT_EQ(refusal(R"({"custom_id":{},"body":{}})"), "bad_field");
  EXPECT_EQ(refusal(R"({"call_type":"aembedding","startTime":1,"messages":"x"})"), "other_event");
  EXPECT_EQ(refusal(R"({"call_type":"acompletion","startTime":1,"status":"success","response":{}})"), "bad_field");
  EXPECT_EQ(refusal(R"({"call_type":"acompletion","startTime":1,"messages":[{"role":"user","content":"u"}]})"),
            "no_answer");
  EXPECT_EQ(refusal(R"({"type":"SPAN","trace_id":"t"})"), "other_event");
  EXPECT_EQ(refusal(R"({"type":"GENERATION","trace_id":"t","level":"ERROR"})"), "failed_request");
  EXPECT_EQ(refusal(R"({"type":"GENERATION","trace_id":"t","input":"q","output":""})"), "no_answer");
  EXPECT_EQ(refusal(R"({"resourceSpans":[]})"), "empty");
  EXPECT_EQ(refusal(R"({"attributes":{"gen_ai.operation.name":"embeddings"}})"), "other_event");
  EXPECT_EQ(refusal(R"({"attributes":{"gen_ai.operation.name":"chat"}})"), "no_answer");
  EXPECT_EQ(refusal(R"({"attributes":{"gen_ai.operation.name":"chat","gen_ai.output.messages":[{"role":"assistant",)"
                    R"("parts":[{"type":"tool_call","name":"f"}]}]}})"),
            "unsupported_tool_calls");
  EXPECT_EQ(refusal(R"({"attributes":{"gen_ai.operation.name":"chat","gen_ai.input.messages":[{"role":"user",)"
                    R"("parts":[{"type":"blob"}]}]}})"),
            "unsupported_content");
  EXPECT_EQ(refusal(R"({"request_body":{"messages":[]},"response_body":{},"response_status":404})"), "failed_request");
  EXPECT_EQ(refusal(R"({"request_body":{"prompt":[1,2,3]},"response_body":"x"})"), "unsupported_content");
  EXPECT_EQ(refusal(R"({"ai_model":"m","request":{"messages":[{"role":"user","content":"u"}]}})"), "no_answer");
  // A format that the user names must survive rows of any shape.
  for (const TrafficFormat& f : traffic_formats())
    for (const char* row : {"{}", R"({"messages":7})",
                            R"({"request":[],"response":null,"attributes":3,"type":{},"request_parameters":"{"})",
                            R"({"custom_id":"x","body":[]})"})
      EXPECT_NE(refusal(row, f.name), "accepted") << f.name << " " << row;
}

TrafficRecord only_record(const std::string& row) {
  const ParsedLine line = parse_line(row, {});
  const auto* parsed = line.rows.size() == 1 ? std::get_if<ParsedRecord>(&line.rows.front()) : nullptr;
  EXPECT_TRUE(parsed) << row;
  return parsed ? parsed->record : TrafficRecord{};
}

TEST(Otel, ContentThatIsMissingAndPartsInText) {
  const auto modern = [](const std::string& user) {
    return R"({"attributes":{"gen_ai.operation.name":"chat","gen_ai.input.messages":)" +
           Json("[{\"role\":\"user\",\"parts\":" + user + "}]").dump() +
           R"(,"gen_ai.output.messages":[{"role":"assistant","parts":[{"type":"reasoning","content":"hm"},)"
           R"({"type":"text","content":"a"}],"finish_reason":"length"}]}})";
  };
  EXPECT_EQ(refusal(modern("[]")), "bad_field");
  const TrafficRecord read = only_record(modern(R"([{"type":"text","content":"u"}])"));
  EXPECT_EQ(read.messages.back().reasoning_content, "hm");
  EXPECT_EQ(read.finish_reason, "length");
  const auto indexed = [](const Json& content) {
    Json attributes = {{"llm.request.type", "chat"},
                       {"gen_ai.prompt.0.role", "user"},
                       {"gen_ai.completion.0.role", "assistant"},
                       {"gen_ai.completion.0.content", "It is a cat."},
                       {"gen_ai.completion.0.finish_reason", "stop"}};
    if (!content.is_null()) attributes["gen_ai.prompt.0.content"] = content;
    return Json{{"attributes", attributes}}.dump();
  };
  const TrafficRecord parts = only_record(indexed(R"([{"type": "text", "text": "What is it?"}])"));
  EXPECT_EQ(parts.messages[0].content, "What is it?");
  EXPECT_EQ(parts.finish_reason, "stop");
  for (const char* text : {"[]", "[1, 2]", R"([{"a": 1}])", R"({"type": "text"})", "plain"})
    EXPECT_EQ(only_record(indexed(text)).messages[0].content, text) << "JSON that somebody wrote";
  EXPECT_EQ(refusal(indexed(nullptr)), "bad_field");
  EXPECT_EQ(refusal(indexed(R"([{"type": "image_url", "image_url": {"url": "x"}}])")), "unsupported_content");
}

TEST(Otel, WhyTheAnswerEndedAndWhatToolsItHad) {
  const auto span = [](const Json& more) {
    Json attributes = {{"gen_ai.operation.name", "chat"},
                       {"gen_ai.prompt", R"([{"role":"user","content":"u"}])"},
                       {"gen_ai.completion", R"([{"role":"assistant","content":"a"}])"}};
    attributes.update(more);
    return Json{{"attributes", attributes}}.dump();
  };
  for (const Json& reasons : {Json::array({"max_tokens"}), Json(R"(["length"])"), Json("length")})
    EXPECT_EQ(only_record(span({{"gen_ai.response.finish_reasons", reasons}})).finish_reason, "length") << reasons;
  EXPECT_EQ(only_record(span(Json::object())).finish_reason, "");
  const std::string flat = R"([{"type":"function","name":"f","parameters":{}}])",
                    nested = R"([{"type":"function","function":{"name":"f"}}])";
  EXPECT_EQ(refusal(span({{"gen_ai.tool.definitions", flat}})), "unsupported_tool_calls");
  EXPECT_EQ(only_record(span({{"gen_ai.tool.definitions", nested}})).tools, nested);
  EXPECT_EQ(refusal(span({{"llm.request.functions.0.name", "f"}})), "unsupported_tool_calls");
  const std::string events =
      R"({"attributes":{"gen_ai.operation.name":"chat"},"events":[{"name":"gen_ai.user.message","attributes":)"
      R"({"content":"u"}},{"name":"gen_ai.choice","attributes":{"finish_reason":"length","message":)"
      R"("{\"content\":\"a\"}"}}]})";
  EXPECT_EQ(only_record(events).finish_reason, "length");
}

TEST(Formats, TagsAreFoundInsideToo) {
  RowOptions options;
  options.domain_field = "metadata.requester_metadata.team";
  options.tenant_field = "metadata.customer";
  const ParsedLine line =
      parse_line(R"({"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}],)"
                 R"("metadata":{"requester_metadata":{"team":"search"},"customer":7},"user":"x"})",
                 options);
  const auto& parsed = std::get<ParsedRecord>(line.rows.front());
  EXPECT_EQ(parsed.record.domain, "search");
  EXPECT_EQ(parsed.tenant, "7");
}

std::map<std::string, int64_t> batch_rejects(const std::vector<std::string>& contents) {
  const Scratch scratch;
  std::vector<fs::path> files;
  for (size_t i = 0; i < contents.size(); ++i)
    files.push_back(scratch.write("f" + std::to_string(i) + ".jsonl", contents[i]));
  return ingest_records(scratch, files).report.rejects;
}

TEST(OpenAiBatch, UnmatchedAndAmbiguousRowsAreRefused) {
  const std::string ask = slurp(fixtures() / "openai-batch/chat.input.jsonl"),
                    answers = slurp(fixtures() / "openai-batch/chat.output.jsonl");
  const auto line = [](const std::string& text, size_t n) {
    std::istringstream in(text);
    std::string found;
    for (size_t i = 0; i <= n; ++i) std::getline(in, found);
    return found + "\n";
  };
  EXPECT_EQ(batch_rejects({ask, answers}), (std::map<std::string, int64_t>{}));
  EXPECT_EQ(batch_rejects({ask, line(answers, 0)}), (std::map<std::string, int64_t>{{"no_answer", 2}}));
  EXPECT_EQ(batch_rejects({line(ask, 1), answers}), (std::map<std::string, int64_t>{{"no_request", 2}}));
  // If two batches use the same custom_ids, a request cannot be matched with its answer.
  EXPECT_EQ(batch_rejects({line(ask, 0) + line(ask, 1), line(ask, 0), answers}),
            (std::map<std::string, int64_t>{{"ambiguous_id", 3}, {"no_request", 1}}));
  // If the second batch follows the complete first one, all rows can be matched.
  EXPECT_EQ(batch_rejects({ask, answers, ask, answers}), (std::map<std::string, int64_t>{}));
}

}  // namespace
}  // namespace specdec::data
