// Tests how an answer's text is split into content, thoughts and function calls.
#include "deploy/serve/answer/answer_parser.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/philox.h"

namespace specdec::deploy {
namespace {

struct Case {
  const char* what;
  ToolFormat format;
  std::string text;
  std::string content, reasoning;
  std::vector<std::pair<std::string, std::string>> calls;  // (name, arguments) each
};

OfferedTools offered() {
  OfferedTools tools;
  tools.list = {{"weather", nlohmann::ordered_json::parse(R"({"type":"object","properties":{
                   "zone":{"type":"string"},"days":{"type":"integer"},"exact":{"type":"boolean"},
                   "at":{"anyOf":[{"type":"integer"},{"type":"null"}]},"list":{"type":"array"}}})")},
                {"add", nlohmann::ordered_json::object()}};
  tools.choice = ToolChoice::kAuto;
  return tools;
}

std::shared_ptr<AnswerFormat> format_of(ToolFormat tools) {
  auto format = std::make_shared<AnswerFormat>();
  format->tools = tools;
  format->reasoning = {"<think>", "</think>"};
  format->offered = offered();
  return format;
}

constexpr auto kHermes = ToolFormat::kHermes, kQwen = ToolFormat::kQwen3Coder, kLlama = ToolFormat::kLlama3Json,
               kMistral = ToolFormat::kMistral, kPlain = ToolFormat::kNone;

// Returns test cases without function calls.
std::vector<Case> texts_and_thoughts() {
  return {
      {"plain text", kHermes, "Hello, <b>world</b>.\n", "Hello, <b>world</b>.\n", "", {}},
      {"nothing", kHermes, "", "", "", {}},
      {"thoughts", kPlain, "<think>\nHm.\n\nYes.\n</think>\n\nIt is.", "It is.", "Hm.\n\nYes.", {}},
      {"thoughts after white space", kPlain, " \n<think>a</think>b", "b", "a", {}},
      {"thoughts without an end", kPlain, "<think>a < b</thin", "", "a < b</thin", {}},
      {"a marker that is no thought", kPlain, "So <think>a</think>", "So <think>a</think>", "", {}},
      {"the beginning of a marker", kPlain, " <thi", " <thi", "", {}},
  };
}

// Returns test cases with function calls in the Hermes format.
std::vector<Case> hermes_calls() {
  return {
      {"one call",
       kHermes,
       "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"zone\": \"a\"}}\n</tool_call>",
       "",
       "",
       {{"weather", "{\"zone\": \"a\"}"}}},
      {"content, then two calls",
       kHermes,
       "I look.\n<tool_call>{\"name\":\"weather\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"name\":\"add\", "
       "\"arguments\":{\"a\":[1,{\"b\":2}]}}\n</tool_call>\n",
       "I look.",
       "",
       {{"weather", "{}"}, {"add", "{\"a\":[1,{\"b\":2}]}"}}},
      {"thoughts, then a call",
       kHermes,
       "<think>\nLook?\n</think>\n\n<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call>",
       "",
       "Look?",
       {{"add", "{\"a\":1}"}}},
      {"arguments before the name",
       kHermes,
       "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"add\"}</tool_call>",
       "",
       "",
       {{"add", "{\"a\": 1}"}}},
      {"arguments in a string",
       kHermes,
       R"(<tool_call>{"name": "add", "arguments": "{\"a\": \"\\n\"}"}</tool_call>)",
       "",
       "",
       {{"add", R"({"a": "\n"})"}}},
      {"braces, quotes and the closing marker in a string",
       kHermes,
       R"(<tool_call>{"name": "add", "arguments": {"a": "}\"]</tool_call>{"}}</tool_call>)",
       "",
       "",
       {{"add", R"({"a": "}\"]</tool_call>{"})"}}},
      {"no arguments", kHermes, "<tool_call>{\"name\": \"add\"}</tool_call>", "", "", {{"add", "{}"}}},
      {"other keys",
       kHermes,
       R"(<tool_call>{"id": 7, "x": {"name": "no"}, "name": "add", "arguments": {}}</tool_call>)",
       "",
       "",
       {{"add", "{}"}}},
      {"an escaped name",
       kHermes,
       R"(<tool_call>{"name": "\u0061dd", "arguments": {}}</tool_call>)",
       "",
       "",
       {{"add", "{}"}}},
  };
}

// Returns test cases whose text only looks like a function call, or whose call breaks off.
std::vector<Case> odd_hermes_calls() {
  return {
      {"a name that is no string",
       kHermes,
       R"(a <tool_call>{"name": 7, "arguments": {}}</tool_call>)",
       R"(a <tool_call>{"name": 7, "arguments": {}}</tool_call>)",
       "",
       {}},
      {"no JSON", kHermes, "a\n<tool_call>weather</tool_call> b", "a\n<tool_call>weather</tool_call> b", "", {}},
      {"cut off before the arguments",
       kHermes,
       "<tool_call>{\"name\": \"add\", \"arg",
       "<tool_call>{\"name\": \"add\", \"arg",
       "",
       {}},
      {"cut off in the arguments",
       kHermes,
       "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"x",
       "",
       "",
       {{"add", "{\"a\": \"x"}}},
      {"broken off in the arguments",
       kHermes,
       "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": </tool_call> b",
       "b",
       "",
       {{"add", "{\"a\": "}}},
      {"a call after one that was none",
       kHermes,
       "<tool_call>{}</tool_call><tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>",
       "<tool_call>{}</tool_call>",
       "",
       {{"add", "{}"}}},
      {"content after a call",
       kHermes,
       "<tool_call>\n{\"name\":\"add\",\"arguments\":{}}\n</tool_call>\nDone.",
       "Done.",
       "",
       {{"add", "{}"}}},
      {"content before and after a call",
       kHermes,
       "I look.\n\n<tool_call>\n{\"name\":\"add\",\"arguments\":{}}\n</tool_call>\nDone.",
       "I look.\nDone.",
       "",
       {{"add", "{}"}}},
      {"no closing marker",
       kHermes,
       "<tool_call>{\"name\":\"add\",\"arguments\":{}} <tool_call>{\"name\":\"add\"}",
       "",
       "",
       {{"add", "{}"}, {"add", "{}"}}},
      {"tags in the format of Hermes",
       kHermes,
       "<tool_call><function=add></function></tool_call>",
       "",
       "",
       {{"add", "{}"}}},
  };
}

// Returns test cases with function calls in the Qwen3-Coder format.
std::vector<Case> qwen_calls() {
  return {
      {"parameters by type",
       kQwen,
       "Well.\n<tool_call>\n<function=weather>\n<parameter=zone>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
       "<parameter=exact>\nTrue\n</parameter>\n<parameter=at>\nnull\n</parameter>\n<parameter=list>\n[1, 2]\n"
       "</parameter>\n<parameter=other>\n5\n</parameter>\n</function>\n</tool_call>",
       "Well.",
       "",
       {{"weather", R"({"zone": "12", "days": 3, "exact": true, "at": null, "list": [1,2], "other": "5"})"}}},
      {"a value of several lines with markup",
       kQwen,
       "<tool_call><function=weather><parameter=zone>\n\n<b>\"x\"</b>\n\n</parameter></function></tool_call>",
       "",
       "",
       {{"weather", R"({"zone": "\n<b>\"x\"</b>\n"})"}}},
      {"no outer tag, and two calls",
       kQwen,
       "<function=add></function>\n<function=add>\n<parameter=a>x</parameter>\n</function>\n</tool_call>",
       "",
       "",
       {{"add", "{}"}, {"add", R"({"a": "x"})"}}},
      {"an integer that is none",
       kQwen,
       "<tool_call><function=weather><parameter=days>two</parameter></function>",
       "",
       "",
       {{"weather", R"({"days": "two"})"}}},
      {"text where a parameter belongs",
       kQwen,
       "<tool_call><function=add>x</function>",
       "x</function>",
       "",
       {{"add", "{}"}}},
      {"JSON in the format of Qwen",
       kQwen,
       "<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>",
       "",
       "",
       {{"add", "{}"}}},
      {"no function", kQwen, "<tool_call><func>x", "<tool_call><func>x", "", {}},
  };
}

// Returns test cases with function calls in the Llama 3 format.
std::vector<Case> llama_calls() {
  return {
      {"a call as the whole answer",
       kLlama,
       "{\"name\": \"weather\", \"parameters\": {\"zone\": \"a\"}}",
       "",
       "",
       {{"weather", "{\"zone\": \"a\"}"}}},
      {"the python tag, and two calls",
       kLlama,
       "<|python_tag|>{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"weather\", \"parameters\": {\"days\": 1}}",
       "",
       "",
       {{"add", "{}"}, {"weather", "{\"days\": 1}"}}},
      {"JSON that is no call",
       kLlama,
       "{\"title\": \"x\", \"name\": \"Anna\"}",
       "{\"title\": \"x\", \"name\": \"Anna\"}",
       "",
       {}},
      {"a function that was not offered",
       kLlama,
       "{\"name\": \"rm\", \"parameters\": {}}",
       "{\"name\": \"rm\", \"parameters\": {}}",
       "",
       {}},
      {"text, then JSON", kLlama, "See {\"name\": \"add\"}", "See {\"name\": \"add\"}", "", {}},
      {"text, then a tag",
       kLlama,
       "See <|python_tag|>{\"name\": \"add\", \"parameters\": {}}",
       "See",
       "",
       {{"add", "{}"}}},
      {"text after a call",
       kLlama,
       "{\"name\": \"add\", \"parameters\": {}} and more",
       "and more",
       "",
       {{"add", "{}"}}},
  };
}

// Returns test cases with function calls in Mistral's formats.
std::vector<Case> mistral_calls() {
  return {
      {"a list",
       kMistral,
       "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}}, {\"name\": \"weather\"}]",
       "",
       "",
       {{"add", "{\"a\": 1}"}, {"weather", "{}"}}},
      {"text after a list",
       kMistral,
       "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {}}\n]\nDone.",
       "Done.",
       "",
       {{"add", "{}"}}},
      {"an empty list", kMistral, "x[TOOL_CALLS][]", "x[TOOL_CALLS][]", "", {}},
      {"the newer form",
       kMistral,
       "I see.[TOOL_CALLS]add[ARGS]{\"a\": {}}[TOOL_CALLS]weather[CALL_ID]ab12[ARGS]{}",
       "I see.",
       "",
       {{"add", "{\"a\": {}}"}, {"weather", "{}"}}},
      {"a name and arguments alone", kMistral, "[TOOL_CALLS]add{\"a\": \"}\"}", "", "", {{"add", "{\"a\": \"}\"}"}}},
      {"no name", kMistral, "[TOOL_CALLS]?", "[TOOL_CALLS]?", "", {}},
      {"a list that breaks off",
       kMistral,
       "[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\"",
       "",
       "",
       {{"add", "{\"a\""}}},
  };
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& some :
       {texts_and_thoughts(), hermes_calls(), odd_hermes_calls(), qwen_calls(), llama_calls(), mistral_calls()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

void expect(const AnswerPiece& found, const Case& wanted, const std::string& where) {
  EXPECT_EQ(found.content, wanted.content) << where;
  EXPECT_EQ(found.reasoning, wanted.reasoning) << where;
  ASSERT_EQ(found.calls.size(), wanted.calls.size()) << where;
  for (size_t i = 0; i < found.calls.size(); ++i) {
    EXPECT_EQ(found.calls[i].index, i) << where;
    EXPECT_EQ(found.calls[i].name, wanted.calls[i].first) << where;
    EXPECT_EQ(found.calls[i].arguments, wanted.calls[i].second) << where;
  }
}

TEST(AnswerParser, SplitsAnswersOfEveryFormat) {
  for (const Case& c : cases()) {
    AnswerParser parser(format_of(c.format));
    AnswerPiece whole = parser.push(c.text);
    whole.append(parser.finish());
    expect(whole, c, c.what);
  }
}

TEST(AnswerParser, DoesNotDependOnHowTheTextIsCut) {
  for (const Case& c : cases())
    for (uint64_t seed = 0; seed < 20; ++seed) {
      AnswerParser parser(format_of(c.format));
      AnswerPiece whole;
      size_t names = 0;
      for (size_t at = 0, i = 0; at < c.text.size(); ++i) {
        const size_t size = seed == 0 ? 1 : 1 + static_cast<size_t>(philox_uniform(seed, 0, i) * 12);
        const AnswerPiece piece = parser.push(std::string_view(c.text).substr(at, size));
        for (const CallPiece& call : piece.calls) names += !call.name.empty();
        whole.append(piece);
        at += size;
      }
      whole.append(parser.finish());
      expect(whole, c, c.what);
      EXPECT_EQ(names, c.calls.size()) << c.what << ": a name comes in one piece";
    }
}

// content() must return the text's content ranges up to the position that decided() returns.
TEST(AnswerParser, KnowsWhereTheContentComesFrom) {
  size_t parts = 0;
  for (const Case& c : cases()) {
    AnswerParser parser(format_of(c.format));
    std::string content;
    size_t decided = 0;
    const auto expect_places = [&](const AnswerPiece& piece) {
      content += piece.content;
      std::string found;
      for (const TextRange& range : parser.content()) found += c.text.substr(range.begin, range.end - range.begin);
      EXPECT_EQ(found, content) << c.what;
      EXPECT_GE(parser.decided(), decided) << c.what;
      decided = parser.decided();
    };
    for (size_t i = 0; i < c.text.size(); ++i) {
      expect_places(parser.push({&c.text[i], 1}));
      EXPECT_LE(decided, i + 1) << c.what;
      if (!parser.content().empty()) EXPECT_LE(parser.content().back().end, decided) << c.what;
    }
    expect_places(parser.finish());
    parts += parser.content().size();
  }
  EXPECT_GT(parts, 20u);
}

TEST(AnswerParser, ArgumentsAreStreamed) {
  AnswerParser parser(format_of(kHermes));
  EXPECT_TRUE(parser.push("<tool_call>{\"name\": \"add\", \"arguments\"").calls.empty());
  const AnswerPiece first = parser.push(": {\"a\": \"lon");
  ASSERT_EQ(first.calls.size(), 1u);
  EXPECT_EQ(first.calls[0].name, "add");
  EXPECT_EQ(first.calls[0].arguments, "{\"a\": \"lon");
  const AnswerPiece second = parser.push("g text\"}");
  ASSERT_EQ(second.calls.size(), 1u);
  EXPECT_EQ(second.calls[0].name, "");
  EXPECT_EQ(second.calls[0].arguments, "g text\"}");
}

TEST(AnswerParser, OnlyTheFirstCallWhereParallelCallsAreNotWanted) {
  const auto format = format_of(kHermes);
  format->offered.parallel = false;
  AnswerParser parser(format);
  AnswerPiece whole = parser.push(
      "<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call><tool_call>{\"name\":\"weather\",\"arguments\":{}}"
      "</tool_call>");
  whole.append(parser.finish());
  ASSERT_EQ(whole.calls.size(), 1u);
  EXPECT_EQ(whole.calls[0].name, "add");
  EXPECT_EQ(whole.content, "");
}

TEST(AnswerParser, APromptThatOpensThoughtsOrACallIsContinued) {
  auto format = format_of(kHermes);
  format->begins_reasoning = true;
  AnswerParser thinking(format);
  AnswerPiece whole = thinking.push("\nHm.\n</think>\n\nYes");
  whole.append(thinking.finish());
  EXPECT_EQ(whole.reasoning, "Hm.");
  EXPECT_EQ(whole.content, "Yes");
  EXPECT_TRUE(ends_with_marker("<|assistant|><think>\n", "<think>"));
  EXPECT_FALSE(ends_with_marker("<think>\n\n</think>\n\n", "<think>"));
  EXPECT_FALSE(ends_with_marker("anything", ""));
  for (const auto& [tools, text] : {std::pair(kHermes, R"({"name":"add","arguments":{"a":1}})"),
                                    std::pair(kQwen, R"({"name":"add","arguments":{"a":1}})"),
                                    std::pair(kLlama, R"({"name":"add","parameters":{"a":1}})"),
                                    std::pair(kMistral, R"([{"name":"add","arguments":{"a":1}}])")}) {
    format = format_of(tools);
    format->begins_in_call = true;
    AnswerParser forced(format);
    AnswerPiece call = forced.push(text);
    call.append(forced.finish());
    ASSERT_EQ(call.calls.size(), 1u) << to_string(tools);
    EXPECT_EQ(call.calls[0].arguments, R"({"a":1})") << to_string(tools);
    EXPECT_EQ(call.content, "") << to_string(tools);
  }
}

// A parser that searched all of its held-back text again at each byte would take minutes for these answers.
TEST(AnswerParser, LongAnswersTakeLinearTime) {
  for (const std::string& unit :
       {std::string(" "), std::string("<tool_call>"), std::string("{"), std::string("<tool_call>{"),
        std::string("[TOOL_CALLS]["), std::string("<function="), std::string("\\\"")})
    for (const ToolFormat tools : {kHermes, kQwen, kLlama, kMistral, kPlain}) {
      std::string text = tools == kQwen ? "<function=add><parameter=a>" : "";
      while (text.size() < 100'000) text += unit;
      AnswerParser parser(format_of(tools));
      AnswerPiece whole = parser.push(text);
      whole.append(parser.finish());
      EXPECT_LE(whole.content.size(), text.size());
    }
}

TEST(ToolFormat, IsRecognisedFromTheTemplate) {
  EXPECT_EQ(tool_format_of("{% for m in messages %}"), ToolFormat::kNone);
  EXPECT_EQ(tool_format_of("{{ tools }} <tool_call>"), kHermes);
  EXPECT_EQ(tool_format_of("{{ tools }} <tool_call>\n<function=x>"), kQwen);
  EXPECT_EQ(tool_format_of("{{ tools }} [TOOL_CALLS]"), kMistral);
  EXPECT_EQ(tool_format_of("{{ tools }} {\"name\": , \"parameters\": }"), kLlama);
  EXPECT_EQ(tool_format_of("<tool_call>"), ToolFormat::kNone) << "a template that shows no tools";
  EXPECT_EQ(reasoning_markers_of("{{ x }}</think>").begin, "<think>");
  EXPECT_EQ(reasoning_markers_of("{{ x }}").begin, "");
}

TEST(ForcedCall, ReferencesTakeTheirPlaceInTheWholeSchema) {
  OfferedTools tools = offered();
  tools.choice = ToolChoice::kRequired;
  tools.list[1].parameters = nlohmann::ordered_json::parse(
      R"({"type":"object","properties":{"a":{"$ref":"#/$defs/A"},"b":{"const":{"$ref":"#/no"}}},)"
      R"("$defs":{"A":{"$ref":"#"}}})");
  const Json schema = Json::parse(forced_schema(kHermes, tools));
  EXPECT_EQ(schema["anyOf"].size(), 2u);
  const Json& moved = schema["$defs"]["1"];
  EXPECT_EQ(moved["properties"]["a"]["$ref"], "#/$defs/1/$defs/A");
  EXPECT_EQ(moved["$defs"]["A"]["$ref"], "#/$defs/1");
  EXPECT_EQ(moved["properties"]["b"]["const"]["$ref"], "#/no") << "data, not a reference";
  tools.choice = ToolChoice::kNamed;
  tools.named = "add";
  const Json named = Json::parse(forced_schema(kMistral, tools));
  EXPECT_EQ(named["items"]["properties"]["name"]["const"], "add");
  EXPECT_EQ(named["maxItems"], 1);
}

}  // namespace
}  // namespace specdec::deploy
