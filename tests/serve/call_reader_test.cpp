// Tests how unquoted parameter values of Qwen3-Coder become JSON: a string, or the value that the text stands for,
// depending on the parameter's schema.
#include "deploy/serve/answer/call_reader.h"

#include <gtest/gtest.h>

namespace specdec::deploy {
namespace {

// Returns the JSON value of parameter p in a call of tool f, given the schema of p and its text.
std::string value(const std::string& schema, const std::string& text, const std::string& definitions = "{}") {
  OfferedTools offered;
  offered.list.push_back({"f", nlohmann::ordered_json::parse(R"({"type":"object","properties":{"p":)" + schema +
                                                             R"(},"$defs":)" + definitions + "}")});
  const auto reader = make_xml_call_reader(offered);
  std::string name, arguments;
  for (const char c : "f>\n<parameter=p>\n" + text + "\n</parameter>\n</function>") reader->push(c, name, arguments);
  const auto parsed = nlohmann::json::parse(arguments, nullptr, false);
  return parsed.contains("p") ? parsed["p"].dump() : "no parameter: " + arguments;
}

TEST(XmlCalls, AValueIsAStringWhereverTheSchemaTakesOne) {
  const std::string optional = R"({"anyOf":[{"type":"string"},{"type":"null"}]})";
  for (const std::string& schema :
       {optional, std::string(R"({"type":["string","null"]})"), std::string(R"({"$ref":"#/$defs/name"})"),
        std::string(R"({"oneOf":[{"type":"number"},{"type":"string"}]})"), std::string(R"({})"),
        std::string(R"({"allOf":[{"$ref":"#/$defs/name"}]})")})
    for (const char* text : {"12345", "true", "True", "[1, 2]", "1e5", "x"})
      EXPECT_EQ(value(schema, text, R"({"name":{"type":"string"}})"), nlohmann::json(text).dump()) << schema;
  for (const char* null : {"null", "None"}) {
    EXPECT_EQ(value(optional, null), "null") << "what Pydantic writes for Optional[str]";
    EXPECT_EQ(value(R"({"type":"string"})", null), nlohmann::json(null).dump());
  }
}

TEST(XmlCalls, AValueIsJsonWhereTheSchemaTakesNoString) {
  EXPECT_EQ(value(R"({"enum":[1,2]})", "2"), "2");
  EXPECT_EQ(value(R"({"enum":[1,2]})", "3"), "3") << "wrong, but not less so as text";
  EXPECT_EQ(value(R"({"enum":["1","2"]})", "2"), "\"2\"");
  EXPECT_EQ(value(R"({"enum":["a",2]})", "2"), "2");
  EXPECT_EQ(value(R"({"const":7})", "7"), "7");
  EXPECT_EQ(value(R"({"const":"7"})", "7"), "\"7\"");
  EXPECT_EQ(value(R"({"type":"integer"})", "12"), "12");
  EXPECT_EQ(value(R"({"type":"boolean"})", "False"), "false");
  EXPECT_EQ(value(R"({"type":["integer","null"]})", "None"), "null");
  EXPECT_EQ(value(R"({"type":"array"})", "[1, 2]"), "[1,2]");
  EXPECT_EQ(value(R"({"anyOf":[{"type":"integer"},{"type":"array"}]})", "[1]"), "[1]");
  EXPECT_EQ(value(R"({"type":"integer"})", "two"), "\"two\"");
  EXPECT_EQ(value(R"({"$ref":"#/$defs/n"})", "5", R"({"n":{"type":"number"}})"), "5");
}

TEST(XmlCalls, IntricateSchemasTakeEverything) {
  EXPECT_EQ(value(R"({"$ref":"#/$defs/a"})", "5", R"({"a":{"$ref":"#/$defs/a"}})"), "\"5\"");
  EXPECT_EQ(value(R"({"$ref":"#/$defs/none"})", "5"), "\"5\"");
  const std::string twice = R"({"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}],"type":"string"})";
  // Without a limit of steps this call would never return.
  EXPECT_EQ(value(R"({"$ref":"#/$defs/a"})", "5", R"({"a":)" + twice + "}"), "\"5\"");
}

// Each alternative would compare the value with all 20,000 numbers, so the check gives up and accepts the value.
TEST(XmlCalls, LongListsBehindManyAlternativesTakeEverything) {
  nlohmann::json list = {{"enum", nlohmann::json::array()}}, many = {{"anyOf", nlohmann::json::array()}};
  for (int i = 0; i < 20000; ++i) list["enum"].push_back(i);
  const std::string definitions = nlohmann::json{{"list", list}}.dump(), reference = R"({"$ref":"#/$defs/list"})";
  EXPECT_EQ(value(reference, "19999", definitions), "19999") << "one list is not too long";
  EXPECT_EQ(value(reference, "20000", definitions), "20000");
  for (int i = 0; i < 100; ++i) many["anyOf"].push_back(nlohmann::json::parse(reference));
  EXPECT_EQ(value(many.dump(), "19999", definitions), "\"19999\"");
}

}  // namespace
}  // namespace specdec::deploy
