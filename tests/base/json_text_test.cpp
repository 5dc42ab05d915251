#include "base/json_text.h"

#include <gtest/gtest.h>

#include <string>

namespace specdec {
namespace {

TEST(JsonText, FollowsTheGrammar) {
  for (const char* json :
       {"{}", " [ ] ", "null", "-0.5e+7", "0", "1e400", "\"\"", R"("\ud800\/\u00e9")", R"({"a":1,"a":[{}, [],"x"]})",
        "\t[true , false]\r\n", R"({ "a" : { } })", "123456789012345678901234567890"})
    EXPECT_TRUE(is_json_text(json)) << json;
  EXPECT_TRUE(is_json_text(std::string(100'000, '[') + std::string(100'000, ']')));
  for (const char* other :
       {"",      " ",     "{",    "}",       "{]",        "[1,]",     "[,1]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}",
        "{a:1}", "[1 2]", "01",   "-",       "1.",        ".5",       "1e",   "1e+",     "+1",       "nul",
        "True",  "\"",    "\"\\", "\"\\x\"", "\"\\u12\"", "\"a\nb\"", "{} x", "1 2",     "'a'"})
    EXPECT_FALSE(is_json_text(other)) << other;
  EXPECT_FALSE(is_json_text(std::string("1\0", 2)));
}

// Every proper prefix of a JSON text is incomplete and must not count as JSON.
TEST(JsonText, WhatIsCutIsNone) {
  const std::string text = R"({"city":"Par\u00eds \"é\"","n":[1.5e-3,{"t":true,"x":null}]})";
  for (size_t size = 0; size < text.size(); ++size) EXPECT_FALSE(is_json_text(text.substr(0, size))) << size;
  EXPECT_TRUE(is_json_text(text));
}

}  // namespace
}  // namespace specdec
