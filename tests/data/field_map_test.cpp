#include "data/formats/field_map.h"

#include "base/error.h"
#include "tests/data/parsed_rows.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

std::string map_error(const std::string& text) {
  try {
    parse_field_map(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage) << text;
    return e.what();
  }
  return "accepted";
}

RowOptions by_map(const std::string& map) { return {.format = &mapped_format(), .map = parse_field_map(map)}; }

// Returns why the row is rejected, as "reason: detail".
std::string why_rejected(const std::string& json, const RowOptions& options) {
  ParsedRow row = parse_one(json, options);
  const auto* why = std::get_if<Rejected>(&row);
  return why ? why->reason + ": " + why->detail : "accepted";
}

std::string described(const std::string& json) { return describe_unknown_row(Json::parse(json)); }

TEST(FieldMap, NamesTheFieldOfEachPart) {
  const FieldMap map = parse_field_map(
      "prompt=q,answer=a.b,system=s,model=m,domain=d,time=t,conversation=c,tenant=who,temperature=heat=1");
  EXPECT_EQ(map.prompt, "q");
  EXPECT_EQ(map.answer, "a.b");
  EXPECT_EQ(map.system + map.model + map.domain + map.time + map.conversation, "smdtc");
  EXPECT_EQ(map.tenant, "who");
  EXPECT_EQ(map.temperature, "heat=1");  // only the first '=' separates
  EXPECT_TRUE(map.holds_content("q") && map.holds_content("s"));
  EXPECT_FALSE(map.holds_content("m") || map.holds_content(""));
  EXPECT_FALSE(parse_field_map("messages=turns").empty());
  EXPECT_TRUE(parse_field_map("").empty());
}

TEST(FieldMap, AMistakeIsNamedOnOneLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"question", "no '=' in 'question'"},
      {"prompt=q,,answer=a", "no '=' in ''"},
      {"prompt=,answer=a", "no field after 'prompt='"},
      {"promt=q,answer=a", "'promt' is none of prompt, answer, messages, system, model, domain, time"},
      {"prompt=q,prompt=r,answer=a", "'prompt' twice"},
      {"prompt=q", "no answer"},
      {"answer=a", "no prompt"},
      {"model=m", "no prompt"},
      {"messages=m,answer=a", "messages hold the prompt and the answer"},
      {"prompt=q,answer=q", "the field 'q' twice"},
      {"prompt=q,answer=a,tenant=q", "the field 'q' twice"},
  };
  for (const auto& [text, problem] : cases) {
    const std::string error = map_error(text);
    EXPECT_EQ(error.rfind("--map: expected KEY=FIELD", 0), 0u) << error;
    EXPECT_NE(error.find("found '" + text + "': " + problem), std::string::npos) << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(MappedRow, PromptAndAnswerAreReadWhereTheMapSays) {
  RowOptions options = by_map("prompt=question,answer=result.text");
  const std::string row = R"({"question":"q","result":{"text":"a"},"unread":[1]})";
  const TrafficRecord raw = accepted_row(row, options).record;
  EXPECT_EQ(raw.prompt + "|" + raw.response, "q|a");
  EXPECT_TRUE(raw.messages.empty());
  options.instructions_as_chat = true;
  EXPECT_EQ(chat_text(accepted_row(row, options).record), "user:q;assistant:a;");
  EXPECT_EQ(parse_line(row, options).format->name, std::string("mapped"));
  // A key that itself contains the dot has precedence over a nested key.
  EXPECT_EQ(chat_text(accepted_row(R"({"question":"q","result.text":"dotted","result":{"text":"a"}})", options).record),
            "user:q;assistant:dotted;");
}

TEST(MappedRow, ASystemMessageMakesAChat) {
  const RowOptions options = by_map("prompt=q,answer=a,system=rules");
  EXPECT_EQ(chat_text(accepted_row(R"({"q":"u","a":"x","rules":"S"})", options).record),
            "system:S;user:u;assistant:x;");
  EXPECT_EQ(accepted_row(R"({"q":"u","a":"x"})", options).record.prompt, "u");
  EXPECT_EQ(accepted_row(R"({"q":"u","a":"x","rules":""})", options).record.prompt, "u");
  EXPECT_EQ(why_rejected(R"({"q":"u","a":"x","rules":["SECRET"]})", options), "bad_field: rules: expected a string");
}

TEST(MappedRow, MessagesAreAChat) {
  const RowOptions options = by_map("messages=log.turns,system=rules");
  const std::string turns = R"([{"role":"human","content":"u"},{"role":"assistant","content":"a"}])";
  const std::string tools = R"([{"type":"function","function":{"name":"f"}}])";
  const TrafficRecord chat =
      accepted_row(R"({"rules":"S","log":{"turns":)" + turns + R"(},"tools":)" + tools + "}", options).record;
  EXPECT_EQ(chat_text(chat), "system:S;user:u;assistant:a;");
  EXPECT_EQ(chat.tools, tools);
  const std::string packed = Json{{"log", {{"turns", turns}}}}.dump();  // the list as text, as in a CSV file
  EXPECT_EQ(chat_text(accepted_row(packed, options).record), "user:u;assistant:a;");
  EXPECT_EQ(why_rejected(R"({"log":{"turns":"SECRET"}})", options), "bad_field: log.turns: expected an array");
  EXPECT_EQ(why_rejected(R"({"log":{}})", options), "bad_field: log.turns: missing");
  EXPECT_EQ(why_rejected(R"({"log":{"turns":[{"role":"user","content":"u"}]}})", options),
            "no_answer: no assistant message");
}

TEST(MappedRow, MetadataIsReadByTheMapElseByItsUsualNames) {
  const RowOptions options = by_map(
      "prompt=q,answer=a,model=by,domain=log.team,time=log.at,conversation=log.chat,tenant=customer,temperature=heat");
  const std::string content = R"({"q":"u","a":"x",)";
  const ParsedRecord named =
      accepted_row(content + R"("by":"m","customer":7,"heat":"0.5","id":"i","top_p":0.9,"model":"other",)"
                             R"("log":{"team":"search","at":1767225600123,"chat":"c"}})",
                   options);
  EXPECT_EQ(named.record.writer + named.record.domain + named.record.conversation + named.record.id, "msearchci");
  EXPECT_EQ(named.record.time, 1767225600);
  EXPECT_EQ(named.tenant, "7");
  ASSERT_TRUE(named.record.sampling);
  EXPECT_DOUBLE_EQ(named.record.sampling->temperature, 0.5);
  EXPECT_DOUBLE_EQ(named.record.sampling->top_p, 0.9);
  const ParsedRecord usual =
      accepted_row(content + R"("model":"n","session_id":"s","user":"w","domain":"d"})", options);
  EXPECT_EQ(usual.record.writer + usual.record.conversation + usual.tenant + usual.record.domain, "nswd");
}

TEST(MappedRow, ContentIsNeverReadAsMetadata) {
  const ParsedRecord row =
      accepted_row(R"({"user":"What is the capital?","thread":"Paris"})", by_map("prompt=user,answer=thread"));
  EXPECT_EQ(row.record.prompt + "|" + row.record.response, "What is the capital?|Paris");
  EXPECT_EQ(row.tenant + row.record.conversation, "");
}

TEST(MappedRow, RowsWithoutTheFieldsAreRefusedAndNeverQuoted) {
  const RowOptions options = by_map("prompt=q.text,answer=a");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"a":"SECRET"})", "bad_field: q.text: missing"},
      {R"({"q":{"text":null},"a":"SECRET"})", "bad_field: q.text: missing"},
      {R"({"q":{"text":["SECRET"]},"a":"SECRET"})", "bad_field: q.text: expected a string"},
      {R"({"q":{"text":"SECRET"}})", "bad_field: a: missing"},
      {R"({"q":{"text":"SECRET"},"a":{"text":"SECRET"}})", "bad_field: a: expected a string"},
      {R"({"q":{"text":" \n"},"a":"SECRET"})", "empty: q.text"},
      {R"({"q":{"text":"SECRET"},"a":" "})", "no_answer: the completion is empty"},
      {R"({"q":{"text":"SECRET"},"a":"SECRET","opt_out":true})", "opted_out: opt_out is true"},
      {R"({"prompt":"SECRET","completion":"SECRET"})", "bad_field: q.text: missing"},  // no other format is tried
  };
  for (const auto& [row, why] : cases) EXPECT_EQ(why_rejected(row, options), why) << row;
}

TEST(UnknownRow, AMapIsSuggestedFromKeysThatLookLikePromptAndAnswer) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"question":"SECRET","reply":"SECRET"})", "prompt=question,answer=reply"},
      {R"({"prompt":"SECRET","answer":"SECRET"})", "prompt=prompt,answer=answer"},
      {R"({"userInput":"SECRET","modelOutput":"SECRET"})", "prompt=userInput,answer=modelOutput"},
      // The suggested key is the one that contains the longest known word; if several keys do, the shortest of them.
      {R"({"user":"SECRET","user_question":"SECRET","ANSWER":"SECRET"})", "prompt=user_question,answer=ANSWER"},
      {R"({"user":"SECRET","question":"SECRET","answer":"SECRET"})", "prompt=question,answer=answer"},
      {R"({"user_text":"SECRET","my_question":"SECRET","target_x":"SECRET","response_x":"SECRET"})",
       "prompt=my_question,answer=response_x"},
      {R"({"prompt_text":"SECRET","response_text":"SECRET"})", "prompt=prompt_text,answer=response_text"},
      {R"({"question_long":"SECRET","question_a":"SECRET","reply":"SECRET"})", "prompt=question_a,answer=reply"},
      // A word counts only at the beginning of a word of the key, so "context" does not contain "text". Ids and values
      // that are not strings do not count.
      {R"({"context":"SECRET","query":"SECRET","reply":"SECRET"})", "prompt=query,answer=reply"},
      {R"({"request_id":"SECRET","queries":"SECRET","query_x":"SECRET","response_time":"SECRET","reply_x":"SECRET"})",
       "prompt=query_x,answer=reply_x"},
      {R"({"question":{"text":"SECRET"},"input":"SECRET","answer":7,"reply":"SECRET"})", "prompt=input,answer=reply"},
      {R"({"question":"SECRET","foo":"SECRET"})", "prompt=question,answer=FIELD"},
      {R"({"foo":"SECRET"})", "prompt=FIELD,answer=FIELD"},
      {R"({"query_reply":"SECRET"})", "prompt=query_reply,answer=FIELD"},
  };
  for (const auto& [row, map] : cases) {
    const std::string text = described(row);
    EXPECT_TRUE(text.ends_with("; to read files that hold only such rows, give --map " + map)) << text;
    EXPECT_EQ(text.find("SECRET"), std::string::npos) << text;
    if (map.find("FIELD") == std::string::npos) EXPECT_EQ(map_error(map), "accepted");
  }
  EXPECT_TRUE(described(R"({"$question":"","reply":""})").ends_with("--map 'prompt=$question,answer=reply'"));
}

TEST(UnknownRow, KeysAreNamedSafelyAndUpToABound) {
  EXPECT_EQ(described(R"({"b":1,"a":{"inner":2}})").rfind("the keys are those of no format: a, b; to read", 0), 0u);
  EXPECT_EQ(described("{}"), "the row has no keys");
  for (const char* text :
       {"question\x1b[2J", "answer\u202e", "reply,x", "A question", "answer@example.com", "4915112345678", "Paris.",
        "input\noutput", "question_of_a_name_longer_than_forty_bytes", ""}) {
    const std::string shown = describe_unknown_row({{text, ""}});
    EXPECT_EQ(shown,
              "the keys are those of no format: 1 not shown; to read files that hold only such rows, give "
              "--map prompt=FIELD,answer=FIELD");
  }
  Json many;
  for (int i = 10; i < 30; ++i) many["k" + std::to_string(i)] = "";
  EXPECT_NE(describe_unknown_row(many).find("k24, k25 and 4 not shown;"), std::string::npos)
      << describe_unknown_row(many);
  EXPECT_NE(described(R"({"@timestamp":"","meta.käse":1})").find(": @timestamp, meta.käse;"), std::string::npos);
}

TEST(UnknownRow, RejectsCarryTheDescription) {
  EXPECT_EQ(
      why_rejected(R"({"question":"SECRET","reply":"SECRET"})", {}),
      "unknown_format: the keys are those of no format: question, reply; to read files that hold only such rows, give "
      "--map prompt=question,answer=reply");
}

class MapIngestTest : public testing::Test {
 protected:
  IngestOptions options(const std::string& name, const std::string& content) {
    return ingest_options(scratch_.write(name, content), target_, scratch_ / "out");
  }
  Scratch scratch_;
  fs::path target_ = make_toy_target(scratch_ / "target");
};

const char kOwnLog[] =
    "{\"question\":\"q one\",\"reply\":\"first\",\"unread\":\"\"}\n"
    "{\"question\":\"q two\"}\n"
    "{\"question\":\"q three\",\"reply\":\"second\"}\n";

TEST_F(MapIngestTest, MappedRowsBecomeChatsOfTheTarget) {
  IngestOptions o = options("own.jsonl", kOwnLog);
  o.map = "prompt=question,answer=reply";
  const IngestResult r = ingest(o, {});
  const text::Tokenizer tokenizer(target_);
  const std::vector<TokenRow> rows = ShardReader(o.out).rows("all");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(learnt_text(tokenizer, rows[0]), "first<|im_end|>");
  EXPECT_EQ(prompt_of(tokenizer, rows[1]).rfind("<|im_start|>user\nq three<|im_end|>", 0), 0u);
  EXPECT_EQ(r.report.rejects, (std::map<std::string, int64_t>{{"bad_field", 1}}));
  EXPECT_EQ(r.report.sources[0].formats, (std::map<std::string, int64_t>{{"mapped", 3}}));
  EXPECT_EQ(r.suggestion, "");
}

TEST_F(MapIngestTest, RowsOfCsvAreMappedAsWell) {
  IngestOptions o = options("own.csv", "Question,Reply,At\nq one,first,2026-01-01T00:00:00Z\nq two,,\n");
  o.map = "prompt=Question,answer=Reply,time=At";
  const IngestResult r = ingest(o, {});
  EXPECT_EQ(r.report.accepted, 1);
  EXPECT_EQ(r.report.rejects, (std::map<std::string, int64_t>{{"bad_field", 1}}));
  EXPECT_EQ(r.split_rule, "time");
}

TEST_F(MapIngestTest, TextIsNotTakenForDocumentsWhenAMapIsGiven) {
  IngestOptions o = options("notes.txt", "some words\n");
  o.map = "prompt=q,answer=a";
  EXPECT_NE(error_of(o, ErrorKind::kData).find("invalid_json 1"), std::string::npos);
}

TEST_F(MapIngestTest, TheFirstUnknownRowIsDescribed) {
  const IngestResult r =
      ingest(options("mixed.jsonl", std::string("{\"text\":\"known\"}\n") + kOwnLog + "{\"z\":1}\n"), {});
  EXPECT_EQ(r.report.rejects.at("unknown_format"), 4);
  EXPECT_NE(r.suggestion.find("question, reply, unread; to read"), std::string::npos) << r.suggestion;
  EXPECT_TRUE(r.suggestion.ends_with("--map prompt=question,answer=reply")) << r.suggestion;
  EXPECT_NE(slurp(scratch_ / "out" / "rejects.jsonl").find("--map prompt=question,answer=reply"), std::string::npos);
  EXPECT_EQ(ingest(options("known.jsonl", "{\"text\":\"known\"}\n"), {}).suggestion, "");
}

TEST_F(MapIngestTest, IfNoRowIsAcceptedTheErrorHasTheSuggestion) {
  const std::string unknown = "{\"question\":\"SECRET\",\"reply\":\"SECRET\"}\n";
  for (const std::string& log : {unknown, "not json SECRET}\n" + unknown}) {
    IngestOptions o = options("own.jsonl", log);
    const std::string error = error_of(o, ErrorKind::kData);
    const std::string map = "--map prompt=question,answer=reply";
    EXPECT_NE(error.find(map), std::string::npos) << error;
    EXPECT_EQ(error.find(map), error.rfind(map)) << error;  // the message contains the map only once
    EXPECT_EQ(error.find("SECRET"), std::string::npos) << error;
    EXPECT_FALSE(fs::exists(o.out));
  }
}

TEST_F(MapIngestTest, FlagsThatSayTheSameAreRefused) {
  const auto refused = [&](auto change) {
    IngestOptions o = options("own.jsonl", kOwnLog);
    o.map = "prompt=question,answer=reply,domain=d,tenant=t";
    change(o);
    return error_of(o, ErrorKind::kUsage);
  };
  EXPECT_EQ(refused([](IngestOptions& o) { o.format = "chat"; }).rfind("--format: expected none beside --map", 0), 0u);
  EXPECT_EQ(refused([](IngestOptions& o) { o.format = "plain"; }).rfind("--format: ", 0), 0u);
  EXPECT_EQ(refused([](IngestOptions& o) { o.domain_field = "e"; }).rfind("--domain-field: ", 0), 0u);
  EXPECT_EQ(refused([](IngestOptions& o) { o.tenant_field = "e"; }).rfind("--tenant-field: ", 0), 0u);
  EXPECT_EQ(refused([](IngestOptions& o) { o.map = "prompt=question"; }).rfind("--map: ", 0), 0u);
}

}  // namespace
}  // namespace specdec::data
