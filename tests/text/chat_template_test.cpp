#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <ctime>
#include <thread>

#include "base/json.h"
#include "tests/base/scratch.h"
#include "tests/source_folder.h"
#include "tests/text/shared_data.h"

namespace specdec::text {
namespace {

using test::shared_data;
using testing::error_of;
using testing::put;
using testing::Scratch;

std::string render(const std::string& source, const std::vector<ChatMessage>& messages = {{"user", "hi"}}) {
  return ChatTemplate(source, "<s>", "</s>").render(messages, false);
}

std::string today() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

class Golden : public ::testing::TestWithParam<bool> {};

void compare(const Json& golden, bool written, const char* cases = "cases",
             const char* conversations = "conversations") {
  std::map<std::string, std::optional<ChatTemplate>> templates;
  int compared = 0, skipped = 0;
  for (const Json& c : golden[cases]) {
    const std::string name = c["template"];
    if (golden["written"].contains(name) != written) continue;
    if (!templates.count(name)) {
      const auto directory = shared_data() / "tokenizers" / name;
      if (written)
        templates.emplace(name, ChatTemplate(golden["written"][name].get<std::string>(), "<s>", "</s>"));
      else
        templates.emplace(name, std::filesystem::exists(directory) ? ChatTemplate::load(directory) : std::nullopt);
    }
    if (!templates[name]) {
      ++skipped;
      continue;
    }
    std::vector<ChatMessage> messages;
    const Json& conversation = golden[conversations][c["conversation"].get<std::string>()];
    for (const Json& m : conversation.is_object() ? conversation["messages"] : conversation)
      messages.push_back(
          {m["role"], m["content"], m.value("tool_calls", ""), m.value("tool_call_id", ""), m.value("name", "")});
    const std::string tools = conversation.is_object() ? conversation["tools"].get<std::string>() : "";
    const std::string where =
        name + " / " + c["conversation"].get<std::string>() + (c["add_generation_prompt"] ? " + prompt" : "");
    ++compared;
    if (c.contains("error") && !c.contains("with_text_arguments")) {
      EXPECT_THROW(templates[name]->render(messages, c["add_generation_prompt"], Json::object(), tools), Error)
          << where;
      continue;
    }
    // Some templates render calls only if the arguments are text. Then the expected text is the rendering with text
    // arguments.
    std::string expected = c.contains("with_text_arguments") ? c["with_text_arguments"] : c["text"];
    const std::string day = today();
    for (size_t at; (at = expected.find("{{TODAY}}")) != std::string::npos;) expected.replace(at, 9, day);
    std::string found;
    try {
      found = templates[name]->render(messages, c["add_generation_prompt"], Json::object(), tools);
    } catch (const Error& e) {
      found = std::string("error: ") + e.what();
    }
    EXPECT_EQ(found, expected) << where;
  }
  if (compared == 0) GTEST_SKIP() << skipped << " cases need " << shared_data() << " (set SPECDEC_SHARED)";
  EXPECT_EQ(skipped, 0);
  EXPECT_GT(compared, std::string(cases) == "cases" ? 100 : 20);
}

class ToolGolden : public ::testing::TestWithParam<bool> {};

TEST_P(ToolGolden, CallsAnswersAndToolsAreRenderedAsTransformersDoes) {
  const Json golden = read_json(std::filesystem::path(source_folder()) / "tests/text/golden/chat_templates.json");
  compare(golden, GetParam(), "tool_cases", "tool_conversations");
}
INSTANTIATE_TEST_SUITE_P(Templates, ToolGolden, ::testing::Values(true, false),
                         [](const auto& info) { return std::string(info.param ? "WrittenHere" : "OfTheHub"); });

TEST_P(Golden, RendersWhatTransformersRenders) {
  compare(read_json(std::filesystem::path(source_folder()) / "tests/text/golden/chat_templates.json"), GetParam());
}
INSTANTIATE_TEST_SUITE_P(Templates, Golden, ::testing::Values(true, false),
                         [](const auto& info) { return std::string(info.param ? "WrittenHere" : "OfTheHub"); });

// The goldens are written by tests/text/published_templates_test.py.
TEST(PublishedTemplates, AreRenderedAsTransformersDoes) {
  const char* const file = std::getenv("SPECDEC_TEMPLATE_GOLDENS");
  if (!file) GTEST_SKIP() << "SPECDEC_TEMPLATE_GOLDENS names no file of goldens";
  Json golden = read_json(file);
  for (const char* cases : {"cases", "tool_cases"})
    std::erase_if(golden[cases].get_ref<Json::array_t&>(), [](const Json& c) {
      // Two things are errors in transformers and are rendered here: a loop over tools when there are none, and a
      // generator that is written as JSON.
      const std::string error = c.value("error", "");
      if (error.ends_with("is not iterable") || error.ends_with("generator is not JSON serializable")) return true;
      // This template adds strings to texts marked as safe, which Jinja then escapes for HTML.
      return c["template"] == "meetkai-functionary-medium-v3.1" && c["conversation"] != "two_calls";
    });
  compare(golden, true);
  compare(golden, true, "tool_cases", "tool_conversations");
}

// The expected texts are those of Jinja 3.1.6.
TEST(ChatTemplate, NoneIsNotIterableAndIndentKeepsTheLastNewline) {
  const auto rendered = [](const char* source) { return ChatTemplate(source, "", "").render({{"user", "x"}}, false); };
  EXPECT_EQ(rendered("{% if tools is iterable and tools | length > 0 %}a{% else %}b{% endif %}"), "b");
  EXPECT_EQ(rendered("{{ nothing is iterable }} {{ [] is iterable }} {{ 'x' is iterable }} {{ 1 is iterable }}"),
            "True True True False");
  EXPECT_EQ(rendered("{{ '{\\n' | indent(2, first=true) }}|{{ 'a\\n\\nb\\n' | indent }}|"), "  {\n|a\n\n    b\n|");
  EXPECT_EQ(rendered("{{ 'a\\r\\n\\nb' | indent('>', false, true) }}|{{ 'a\\u2028b' | indent(width=1) }}"),
            "a\n>\n>b|a\n b");
  for (const char* wrong : {"{{ 'a' | indent(5000) }}", "{{ 'a' | indent(2, no=1) }}", "{{ 1 | indent }}"})
    EXPECT_THROW(rendered(wrong), Error) << wrong;
}

// The expected texts are those of Jinja 3.1.6.
TEST(ChatTemplate, EntitiesFloatsAndWordsAreThoseOfJinja) {
  const auto rendered = [](const char* source) { return ChatTemplate(source, "", "").render({{"user", "x"}}, false); };
  EXPECT_EQ(ChatTemplate("{{ messages[0].content | e }} {{ 5 | escape }}", "", "")
                .render({{"user", "<a href=\"/\">' & b"}}, false),
            "&lt;a href=&#34;/&#34;&gt;&#39; &amp; b 5");
  EXPECT_EQ(rendered("{{ 1e20 }} {{ 1.5 }} {{ 2.0 }} {{ 1e-7 }} {{ -0.5 }} {{ 1e16 | string }} {{ [1e20] | tojson }}"),
            "1e+20 1.5 2.0 1e-07 -0.5 1e+16 [1e+20]");
  EXPECT_EQ(rendered("{{ 'one two,three_4' | wordcount }} {{ ' ' | wordcount }} {{ 'é a' | wordcount }}"), "3 0 2");
  EXPECT_EQ(rendered("{{ 7 }} {{ true }} {{ none }} {{ nothing }}"), "7 True None ");
}

// Compares with the goldens of make_expression_goldens.py: formats by %, texts joined by ~, and values as Python writes
// them.
TEST(ChatTemplate, ExpressionsGiveTheTextsOfJinja) {
  const Json golden = read_json(source_folder() + "/tests/text/golden/expressions.json", ErrorKind::kData);
  ASSERT_GT(golden["rows"].size(), 100u);
  for (const Json& row : golden["rows"]) {
    const std::string expression = row[0];
    const ChatTemplate chat("{{ " + expression + " }}", "", "");
    std::optional<std::string> text;
    try {
      text = chat.render({}, false, golden["variables"]);
    } catch (const TemplateError& e) {
      EXPECT_TRUE(row[1].is_null()) << expression << ": " << e.what();
      EXPECT_EQ(e.place().find("line 1: "), 0u) << e.place();
    }
    if (text) EXPECT_EQ(Json(*text), row[1]) << expression;
  }
}

// The place of an error, which may be logged, has the line and the template's own words, but nothing of the
// conversation.
TEST(ChatTemplate, AnErrorHasItsPlaceInTheTemplate) {
  const auto place = [](ChatTemplate chat, bool confined) {
    if (confined) chat.confine();
    try {
      chat.render({{"user", "a secret"}}, false);
    } catch (const TemplateError& e) {
      return e.place();
    }
    return std::string("rendered");
  };
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{{ messages[0].content | no_such }}", "line 2: unknown filter: no_such"},
      {"{{ messages[0].content.no_such(1) }}", "line 1: unknown method: .no_such(1)"},
      {"{{ messages[0].content % 2 }}", "line 1: invalid operation: messages[0].content % 2"},
      {"\n\n{{ 1  + messages[0].content }}", "line 3: invalid operation: 1 + messages[0].content"},
      {"{{ no_such(3) }}", "line 1: unknown function: no_such(3)"},
      {"{{ raise_exception('no: ' ~ messages[0].content) }}",
       "line 1: raise_exception: raise_exception('no: ' ~ messages[0].content)"},
  };
  for (const auto& [source, expected] : cases)
    for (const bool confined : {false, true}) EXPECT_EQ(place(ChatTemplate(source, "", ""), confined), expected);
  const ChatTemplate chat("{{ x }}", "", "");
  try {
    chat.render({}, false, {{"messages", 1}});
    FAIL();
  } catch (const TemplateError& e) {
    EXPECT_EQ(e.place(), "'messages' is set by the program and cannot be given");
  }
}

TEST(ChatTemplate, RaiseExceptionIsTheMessage) {
  const ChatTemplate chat("{{ raise_exception('roles must alternate') }}", "", "");
  const std::string message = error_of([&] { chat.render({{"user", "x"}}, false); }, ErrorKind::kData);
  EXPECT_EQ(message, "chat template: roles must alternate");
}

TEST(ChatTemplate, RaiseInsideAMacroIsTheMessage) {
  const std::string message = error_of(
      [] { render("{% macro f() %}{{ raise_exception('inner') }}{% endmacro %}{{ f() }}"); }, ErrorKind::kData);
  EXPECT_EQ(message, "chat template: inner");
}

TEST(ChatTemplate, ExtraVariablesCannotReplaceOurs) {
  const ChatTemplate chat("{{ enable_thinking }}{{ messages[0].content }}", "<s>", "");
  EXPECT_EQ(chat.render({{"user", "x"}}, false, {{"enable_thinking", false}}), "Falsex");
  for (const char* key : {"messages", "add_generation_prompt", "tools", "documents", "bos_token"})
    EXPECT_NE(error_of([&] { chat.render({{"user", "x"}}, false, {{key, "y"}}); }, ErrorKind::kData).find(key),
              std::string::npos);
}

TEST(ChatTemplate, BrokenSourceNamesTheLine) {
  const std::string message = error_of([] { render("a\n{% if x %}\nb"); }, ErrorKind::kModel);
  EXPECT_NE(message.find("line 3"), std::string::npos) << message;
}

TEST(ChatTemplate, InvalidUtf8IsRefused) {
  EXPECT_THROW(render(std::string("\xff")), Error);
  EXPECT_THROW(render("{{ messages[0].content }}", {{"user", "\xc3"}}), Error);
}

TEST(ChatTemplate, LoadsFromEveryPlaceInOrder) {
  Scratch d;
  EXPECT_FALSE(ChatTemplate::load(d.root()));
  put(d / "tokenizer_config.json",
      R"({"bos_token": {"content": "<b>"}, "chat_template": [{"name": "tool_use", "template": "t"},
      {"name": "default", "template": "list {{ bos_token }}"}]})");
  EXPECT_EQ(ChatTemplate::load(d.root())->render({}, false), "list <b>");
  put(d / "chat_template.json", R"({"chat_template": "json {{ bos_token }}"})");
  EXPECT_EQ(ChatTemplate::load(d.root())->render({}, false), "json <b>");
  put(d / "chat_template.jinja", "jinja {{ bos_token }}");
  EXPECT_EQ(ChatTemplate::load(d.root())->render({}, false), "jinja <b>");
}

TEST(ChatTemplate, BadFilesNameThemselves) {
  Scratch d;
  put(d / "tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_NE(error_of([&] { ChatTemplate::load(d.root()); }, ErrorKind::kModel).find("tokenizer_config.json"),
            std::string::npos);
  put(d / "tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_NE(error_of([&] { ChatTemplate::load(d.root()); }, ErrorKind::kModel).find("default"), std::string::npos);
  put(d / "chat_template.jinja", "{{ unclosed");
  EXPECT_NE(error_of([&] { ChatTemplate::load(d.root()); }, ErrorKind::kModel).find("chat_template.jinja"),
            std::string::npos);
}

TEST(ChatTemplate, OneTemplateRendersFromManyThreads) {
  const ChatTemplate chat("{% for m in messages %}{{ m.content }},{% endfor %}", "", "");
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const std::string word = "w" + std::to_string(t);
      for (int i = 0; i < 200; ++i)
        wrong += chat.render({{"user", word}, {"user", word}}, false) != word + "," + word + ",";
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

// Known attacks on template engines. Each must give an error in this process, without killing it.
std::string repeat(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

struct Attack {
  const char* name;
  std::string source;
};
std::vector<Attack> contained_attacks() {
  return {
      {"long range", "{% for i in range(1000000000) %}{% endfor %}"},
      {"range to a list", "{{ range(4000000000) | list }}"},
      {"nested loops", "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"},
      {"string times 4e9", "{{ 'a' * 4000000000 }}"},
      {"output over the limit", "{{ 'a' * 50000000 }}"},
      {"loop output",
       "{% for i in range(90000) %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' }}{% endfor %}"},
      {"recursive macro", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"},
      {"recursive loop", "{% for i in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}"},
      {"nested ifs", repeat("{% if true %}", 70000) + repeat("{% endif %}", 5)},
      {"parentheses", "{{ " + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}"},
      {"nested lists", "{{ " + repeat("[", 100000) + repeat("]", 100000) + " }}"},
      {"class probing", "{{ ''.__class__.__mro__[1].__subclasses__() }}"},
      {"globals probing", "{{ raise_exception.__globals__['os'].system('true') }}"},
      {"include", "{% include '/etc/passwd' %}"},
      {"import", "{% import '/etc/passwd' as p %}{{ p.x }}"},
      {"extends itself", "{% extends 'chat_template' %}"},
      {"infinite json",
       "{% set ns = namespace(x=1) %}{{ raise_exception }}{{ ns | tojson }}{{ ('ab' * 5000000) | tojson | length }}{{ "
       "[1] * 2000000 | tojson }}"},
      {"huge indent", "{{ [[1]] | tojson(indent=1000000000) }}"},
      {"too long", repeat("a", (1 << 20) + 1)},
  };
}

TEST(ChatTemplateAttacks, AreCleanErrors) {
  for (const Attack& attack : contained_attacks()) EXPECT_THROW(render(attack.source), Error) << attack.name;
}

// The interpreter's limits do not stop these attacks, so only a child process may run them.
std::vector<Attack> lethal_attacks() {
  return {
      {"doubling", "{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"},
      {"doubling a list",
       "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = (ns.s + ns.s) | list %}{% endfor %}"},
      {"doubling by message",
       "{% set ns = namespace(s='aaaaaaaa') %}{% for m in messages %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"},
      {"doubling a capture",
       "{% set s = 'a' %}{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set b %}{{ ns.s }}{{ ns.s }}{% "
       "endset %}{% set ns.s = b %}{% endfor %}"},
      {"chain of not", "{{ " + repeat("not ", 200000) + "1 }}"},
      {"chain of elif", "{% if a %}" + repeat("{% elif a %}", 80000) + "{% endif %}"},
      {"folded constants", "{{ " + repeat("('a' * 99999999) ~ ", 100) + "1 }}"},
      {"chain that folds in quadratic time", "{{ a" + repeat(" and a", 40000) + " }}"},
      {"nested by a loop",
       "{% set ns = namespace(l=[]) %}{% for i in range(90000) %}{% set ns.l = [[[ns.l]]] %}{% endfor %}"},
      {"many large strings",
       "{% set ns = namespace(l=[]) %}{% for i in range(90) %}{% set ns.l = ns.l + [('a' ~ i) * 30000000] %}{% endfor "
       "%}"},
  };
}

TEST(ChatTemplateAttacks, ThatKillTheRendererAreRefused) {
  const ChildLimits small{64u << 20, 1, 10};
  for (const Attack& attack : lethal_attacks()) {
    const std::string message =
        error_of([&] { vet_template(attack.source, {}, attack.name, small); }, ErrorKind::kModel);
    EXPECT_TRUE(message.starts_with(std::string(attack.name) + ": a probe conversation killed the renderer"))
        << message;
  }
}

TEST(ChatTemplateAttacks, LoadVetsWithTheDefaultLimits) {
  Scratch d;
  put(d / "chat_template.jinja", lethal_attacks().front().source);
  const std::string message = error_of([&] { ChatTemplate::load(d.root()); }, ErrorKind::kModel);
  EXPECT_NE(message.find("chat_template.jinja: a probe"), std::string::npos) << message;
  EXPECT_NE(message.find("512 MiB, 2 s"), std::string::npos) << message;
}

TEST(ChatTemplateAttacks, ContainedOnesPassTheVet) {
  for (const Attack& attack : contained_attacks()) {
    if (std::string(attack.name) == "nested loops" || std::string(attack.name) == "loop output") continue;
    // These limits are so wide that the interpreter's own limits end the attacks on any machine.
    const ChildLimits roomy{512u << 20, 60, 120};
    EXPECT_NO_THROW(vet_template(attack.source, {}, attack.name, roomy)) << attack.name;
  }
}

// This template misbehaves only with 66 messages or more, and no probe conversation has that many.
TEST(ChatTemplateAttacks, ALoadedTemplateIsBoundedAtEveryRendering) {
  Scratch d;
  std::string doubling = "{% set s = messages[0].content %}";
  for (int i = 0; i < 60; ++i) doubling += "{% set s = s ~ s %}";
  put(d / "chat_template.jinja", "{% if messages|length > 65 %}" + doubling +
                                     "{{ s|length }}{% endif %}{% for m in messages %}{{ m.content }};{% endfor %}");
  std::optional<ChatTemplate> chat = ChatTemplate::load(d.root());
  ASSERT_TRUE(chat);
  chat->confine({96u << 20, 1, 30});
  const std::vector<ChatMessage> few(65, {"user", "aaaa"}), many(66, {"user", "aaaa"});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(chat->render(few, true), repeat("aaaa;", 65));
    const std::string message = error_of([&] { chat->render(many, true); }, ErrorKind::kData);
    EXPECT_NE(message.find("rendering this conversation was ended: it takes more than 96 MiB or 1 s"),
              std::string::npos)
        << message;
  }
}

// Each attack that the interpreter's limits do not stop is triggered by a word in a message. Only the conversation with
// that word fails.
TEST(ChatTemplateAttacks, SprungByAMessageFailThatConversationAlone) {
  for (const Attack& attack : lethal_attacks()) {
    Scratch d;
    // These attacks already kill the compiler; vet_template's tests cover them.
    if (attack.source.starts_with("{{") || attack.source.starts_with("{% if")) continue;
    put(d / "chat_template.jinja", "{% if 'spring' in messages[0].content %}" + attack.source + "{% endif %}fine");
    std::optional<ChatTemplate> chat = ChatTemplate::load(d.root());
    ASSERT_TRUE(chat) << attack.name;
    chat->confine({64u << 20, 1, 30});
    EXPECT_EQ(chat->render({{"user", "hello"}}, true), "fine") << attack.name;
    const std::vector<ChatMessage> sprung(40, {"user", "spring"});
    const std::string message = error_of([&] { chat->render(sprung, true); }, ErrorKind::kData);
    EXPECT_TRUE(message.starts_with("chat template: ")) << attack.name << ": " << message;
    EXPECT_EQ(chat->render({{"user", "hello"}}, true), "fine") << attack.name;
  }
}

TEST(ChatTemplate, AConfinedOneSaysWhatItSaysHere) {
  ChatTemplate here(
      "{{ messages[0].content }}{% if messages|length > 1 %}{{ raise_exception('two are too many') }}{% endif %}", "",
      "");
  ChatTemplate confined(
      "{{ messages[0].content }}{% if messages|length > 1 %}{{ raise_exception('two are too many') }}{% endif %}", "",
      "");
  confined.confine();
  const std::vector<ChatMessage> one = {{"user", "a\"\n€🙂"}}, two(2, {"user", "b"});
  EXPECT_EQ(confined.render(one, true), here.render(one, true));
  EXPECT_EQ(error_of([&] { confined.render(two, true); }, ErrorKind::kData),
            error_of([&] { here.render(two, true); }, ErrorKind::kData));
}

}  // namespace
}  // namespace specdec::text
