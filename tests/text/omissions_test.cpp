// For the available published templates: a rendering contains everything that the conversation says, or omitted() names
// what is missing. The table below lists what each template leaves out.
#include <gtest/gtest.h>

#include <map>

#include "base/file.h"
#include "tests/base/scratch.h"
#include "tests/source_folder.h"
#include "tests/text/shared_data.h"
#include "text/chat_template.h"

namespace specdec::text {
namespace {

using test::shared_data;

constexpr char kTools[] =
    R"([{"type":"function","function":{"name":"get_weather","description":"Says it.","parameters":{"type":"object",)"
    R"("properties":{"city":{"type":"string"}}}}}])";
constexpr char kCall[] =
    R"([{"id":"abcde1234","type":"function","function":{"name":"get_weather","arguments":{"city":"Rome"}}}])";

// A conversation, and the texts that its rendering must contain.
struct Conversation {
  std::vector<ChatMessage> messages;
  std::string tools;
  std::vector<std::string> says;
};

std::vector<std::pair<std::string, Conversation>> conversations() {
  const ChatMessage question{"user", "What about tomorrow?\n"};
  ChatMessage result{"tool", "  sunny in the morning"}, call{"assistant", "", kCall}, thoughtful = call;
  result.tool_call_id = "abcde1234";
  result.name = "get_weather";
  thoughtful.reasoning_content = "I should ask the service.";
  return {
      {"system", {{{"system", "Always say BANANA."}, question}, "", {"Always say BANANA.", "What about tomorrow?"}}},
      {"developer",
       {{{"developer", "Always say BANANA."}, question}, "", {"Always say BANANA.", "What about tomorrow?"}}},
      {"turns",
       {{{"user", "Hello there."}, {"assistant", "Good day!"}, question},
        "",
        {"Hello there.", "Good day!", "What about tomorrow?"}}},
      {"call",
       {{question, call, result}, kTools, {"What about tomorrow?", "get_weather", "Rome", "sunny in the morning"}}},
      {"thought",
       {{question, thoughtful, result}, kTools, {"I should ask the service.", "Rome", "sunny in the morning"}}},
  };
}

// Returns "" if the rendering contains everything, the name of the omitted part, or "refused" if the template raises an
// error.
std::string verdict(const ChatTemplate& chat, const Conversation& c) {
  std::string rendered;
  try {
    rendered = chat.render(c.messages, true, Json::object(), c.tools);
  } catch (const Error&) {
    return "refused";
  }
  const auto omitted = chat.omitted(c.messages, Json::object(), c.tools);
  if (omitted) return *omitted;
  for (const std::string& text : c.says)
    EXPECT_NE(rendered.find(text), std::string::npos) << text << " in\n" << rendered;
  return "";
}

std::map<std::string, std::filesystem::path> templates() {
  std::map<std::string, std::filesystem::path> found;
  const std::filesystem::path families = std::filesystem::path(source_folder()) / "tests/text/golden/families";
  for (const auto& entry : std::filesystem::directory_iterator(families))
    found["family " + entry.path().filename().string()] = entry.path();
  for (const auto& folder : {shared_data() / "tokenizers", shared_data() / "tokenizers/ort-ext"})
    if (std::filesystem::exists(folder))
      for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.is_directory()) found["published " + entry.path().filename().string()] = entry.path();
  return found;
}

TEST(Omissions, OfEveryTemplateAreInThisTable) {
  using Table = std::map<std::string, std::string>;
  const std::string name_of_call = "messages[1].tool_calls[0].function.name", thought = "messages[1].reasoning_content";
  const Table no_calls = {{"call", name_of_call}, {"thought", thought}},
              refuses_calls = {{"call", "refused"}, {"thought", "refused"}},
              refuses_system = {
                  {"call", "refused"}, {"thought", "refused"}, {"system", "refused"}, {"developer", "refused"}};
  const std::map<std::string, Table> known = {
      {"family gemma2", refuses_system},
      {"family gemma3", refuses_calls},
      {"family llama2", no_calls},
      {"family llama3", no_calls},
      {"family mistral", refuses_system},
      {"family mistral_nemo", refuses_system},
      {"family mixtral", refuses_system},
      {"family olmo2", no_calls},
      {"family phi3", no_calls},
      {"family phi4", no_calls},
      {"family phi4_mini", no_calls},
      {"family qwen2", no_calls},
      {"family qwen3", no_calls},
      {"family smollm", no_calls},
      {"family smollm3", no_calls},
      {"published added-tokens",  // its template renders only user and assistant messages
       {{"call", name_of_call},
        {"thought", thought},
        {"system", "messages[0].content"},
        {"developer", "messages[0].content"}}},
      {"published gemma-3-chat", refuses_calls},
      {"published gpt-oss", refuses_calls},  // this edition expects a call's name outside `function`
      {"published nvidia-mistral", no_calls},
      {"published phi-3-mini", no_calls},
      {"published phi-4-mini", no_calls},
      {"published phi-4-mini-reasoning", no_calls},
      {"published qwen2", no_calls},
      {"published qwen2.5", {{"thought", thought}}},  // renders calls, but no thoughts
                                                      // Qwen3's template leaves out nothing, so it is not listed.
  };
  size_t checked = 0;
  for (const auto& [name, directory] : templates()) {
    const auto chat = ChatTemplate::load(directory);
    if (!chat) continue;
    ++checked;
    Table found;
    for (const auto& [kind, conversation] : conversations()) {
      SCOPED_TRACE(name + ": " + kind);
      if (const std::string v = verdict(*chat, conversation); !v.empty()) found[kind] = v;
    }
    const auto expected = known.find(name);
    EXPECT_EQ(found, expected == known.end() ? Table() : expected->second) << name;
  }
  EXPECT_GE(checked, 15u);
}

// The nightly run has about 70 more templates (published_templates_test.py). What they leave out is not listed here,
// but verdict() checks that every omission is named.
TEST(Omissions, OfPublishedTemplatesAreNamed) {
  const char* const folder = std::getenv("SPECDEC_CHAT_TEMPLATES");
  if (!folder) GTEST_SKIP() << "SPECDEC_CHAT_TEMPLATES names no folder of templates";
  int whole = 0, named = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    const ChatTemplate chat(read_file(entry.path(), size_t{1} << 20, ErrorKind::kData), "<s>", "</s>");
    for (const auto& [kind, conversation] : conversations()) {
      SCOPED_TRACE(entry.path().stem().string() + ": " + kind);
      const std::string v = verdict(chat, conversation);
      ++(v.empty() ? whole : v == "refused" ? refused : named);
    }
  }
  std::printf("%d conversations are shown whole, %d lack what is named, %d are refused\n", whole, named, refused);
  EXPECT_GT(whole, named + refused);
}

std::string render(const std::string& source, const std::vector<ChatMessage>& messages, const std::string& tools = "") {
  return ChatTemplate(source, "", "").render(messages, false, Json::object(), tools);
}

TEST(Omissions, ContentIsAListOfPartsWhereTheTemplateIterates) {
  const std::string source =
      "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}"
      "{% endfor %};{% endfor %}";
  EXPECT_EQ(render(source, {{"user", "Hi"}, {"assistant", "Ho"}}), "user:Hi;assistant:Ho;");
}

TEST(Omissions, DeveloperIsSystemWhereTheTemplateDoesNotKnowIt) {
  const std::vector<ChatMessage> messages = {{"developer", "Short."}, {"user", "Hi"}};
  const std::string drops =
      "{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.role }}:{{ m.content }};"
      "{% endif %}{% endfor %}";
  EXPECT_EQ(render(drops, messages), "system:Short.;user:Hi;");
  const std::string raises =
      "{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('no') }}{% endif %}"
      "{{ m.role }}:{{ m.content }};{% endfor %}";
  EXPECT_EQ(render(raises, messages), "system:Short.;user:Hi;");
  EXPECT_EQ(render("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", messages),
            "developer:Short.;user:Hi;");
}

TEST(Omissions, ArgumentsAreTextWhereTheTemplateJoinsText) {
  const std::string source =
      "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}{{ c.function.name + ' ' + "
      "c.function.arguments }}{% endfor %}{% else %}{{ m.content }}{% endif %};{% endfor %}";
  const auto call = [](const std::string& arguments) {
    return ChatMessage{"assistant", "", R"([{"function":{"name":"f","arguments":)" + arguments + "}}]"};
  };
  EXPECT_EQ(render(source, {{"user", "q"}, call(R"({"a":[1,"x"],"b":{}})"), {"tool", "r"}}),
            R"(q;f {"a": [1, "x"], "b": {}};r;)");
  EXPECT_EQ(render(source, {call("{}")}), "f {};");
  EXPECT_EQ(render(source, {call(R"("{cut")")}), "f {cut;");
}

TEST(Omissions, NameWhatIsLeftOut) {
  const auto omitted = [](const std::string& source, const std::vector<ChatMessage>& messages,
                          const std::string& tools = "") {
    return ChatTemplate(source, "", "").omitted(messages, Json::object(), tools).value_or("nothing");
  };
  const std::string users =
                        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content | trim }}{% endif %}{% endfor %}",
                    all = "{% for m in messages %}{{ m.content }}{% endfor %}";
  ChatMessage call{"assistant", "", kCall}, thought{"assistant", "Yes."};
  thought.reasoning_content = "Hm.";
  EXPECT_EQ(omitted(users, {{"user", "a"}, {"user", "a"}}), "nothing");
  EXPECT_EQ(omitted(users, {{"user", "a"}, {"assistant", "a"}}), "messages[1].content") << "though an 'a' is there";
  EXPECT_EQ(omitted(users, {{"user", "a"}, {"assistant", " \n"}}), "nothing");
  EXPECT_EQ(omitted(users, {{"system", "s"}, {"user", "a"}}), "messages[0].content");
  EXPECT_EQ(omitted(all, {{"user", "a"}, call}), "messages[1].tool_calls[0].function.name");
  EXPECT_EQ(omitted(all + "{{ messages[1].tool_calls[0].function.name }}", {{"user", "a"}, call}),
            "messages[1].tool_calls[0].function.arguments");
  EXPECT_EQ(omitted(all + "{{ messages[1].tool_calls | tojson }}", {{"user", "a"}, call}), "nothing");
  EXPECT_EQ(omitted(all, {{"user", "a"}, thought}), "messages[1].reasoning_content");
  EXPECT_EQ(omitted(all, {{"user", "a"}, thought, {"user", "b"}}), "nothing") << "an earlier thought may go";
}

// The rendering is scanned once, however many marks it contains; quadratic time would show as a hang.
TEST(Omissions, AreFoundAmongManyArguments) {
  Json arguments = Json::object(), calls = Json::array();
  for (int i = 0; i < 1000; ++i) arguments["a" + std::to_string(i)] = 0;
  for (int i = 0; i < 20; ++i) calls.push_back({{"function", {{"name", "f"}, {"arguments", arguments}}}});
  const ChatMessage call{"assistant", "", calls.dump()};
  const ChatTemplate chat("{% for m in messages %}{{ m.content }}{{ (m.tool_calls or []) | tojson }}{% endfor %}", "",
                          "");
  std::vector<ChatMessage> messages(20, call);
  messages.insert(messages.begin(), {"user", "q"});
  EXPECT_EQ(chat.omitted(messages, Json::object(), ""), std::nullopt);
  messages.back().reasoning_content = "Hm.";
  EXPECT_EQ(chat.omitted(messages, Json::object(), ""), "messages[20].reasoning_content");
}

}  // namespace
}  // namespace specdec::text
