#include "base/json.h"

#include <sys/stat.h>

#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::expect_error;

Json parse(std::string_view text, JsonLimits limits = {}) {
  return parse_json(text, "test.json", ErrorKind::kData, limits);
}

TEST(Json, ParsesEveryKindOfValue) {
  const Json v = parse(R"( {"a":[1,-2,3.5,true,false,null,"\u00e9\n"],"b":{"c":{}},"d":18446744073709551615} )");
  EXPECT_EQ(v, Json::parse(R"({"a":[1,-2,3.5,true,false,null,"\u00e9\n"],"b":{"c":{}},"d":18446744073709551615})"));
  EXPECT_EQ(parse("7"), 7);
  EXPECT_EQ(parse("\"x\""), "x");
}

TEST(Json, RefusesWhatIsNotOneJsonValue) {
  const std::vector<std::string> bad = {"",
                                        " ",
                                        "{",
                                        "[1,]",
                                        "{\"a\":}",
                                        "nul",
                                        "NaN",
                                        "Infinity",
                                        "[1] [2]",
                                        "{} x",
                                        "{'a':1}",
                                        "01",
                                        "\"\xff\xfe\"",
                                        "\"\\ud800\"",
                                        "\"a",
                                        "/* */ 1",
                                        "\"tab\there\"",
                                        "[1e999]",
                                        "-1e999",
                                        std::string("{}\0{}", 5),
                                        std::string("\0", 1)};
  for (const std::string& text : bad) expect_error(ErrorKind::kData, {"test.json"}, [&] { parse(text); });
}

TEST(Json, NamesBytePositionAndReason) {
  expect_error(ErrorKind::kData, {"test.json", "not valid JSON", "byte 6"}, [] { parse("[1,2,x]"); });
  expect_error(ErrorKind::kData, {"overflow", "1e999"}, [] { parse("[1e999]"); });
  expect_error(ErrorKind::kModel, {"m.json"}, [] { parse_json("x", "m.json", ErrorKind::kModel); });
}

TEST(Json, RefusesDuplicateKeysAtAnyLevel) {
  expect_error(ErrorKind::kData, {"duplicate key 'a'"}, [] { parse(R"({"a":1,"a":1})"); });
  expect_error(ErrorKind::kData, {"duplicate key 'b'"}, [] { parse(R"([{"x":{"b":1,"c":2,"b":3}}])"); });
  EXPECT_NO_THROW(parse(R"([{"a":1},{"a":2}])"));
}

TEST(Json, LimitsDepthAndSize) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_NO_THROW(parse(nested(64)));
  expect_error(ErrorKind::kData, {"deeper than 64"}, [&] { parse(nested(65)); });
  expect_error(ErrorKind::kData, {"deeper than 64"}, [&] { parse(std::string(10'000'000, '[')); });
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  expect_error(ErrorKind::kData, {"deeper than 64"}, [&] { parse(objects); });
  expect_error(ErrorKind::kData, {"the limit is 3"}, [] { parse("[11]", {.max_bytes = 3}); });
  EXPECT_NO_THROW(parse("[1]", {.max_bytes = 3}));
}

TEST(Json, LimitsTheNumberOfValues) {
  EXPECT_NO_THROW(parse(R"([[],{"a":1}])", {.max_values = 4}));
  expect_error(ErrorKind::kData, {"more than 4 values"}, [] { parse(R"([[],{"a":1},2])", {.max_values = 4}); });
  std::string empty = "[[]";
  for (int i = 1; i < 1 << 20; ++i) empty += ",[]";
  expect_error(ErrorKind::kData, {"more than 1048576 values"}, [&] { parse(empty + "]"); });
}

TEST(Json, InOrderIsBoundedMoreTightly) {
  const auto parse_in_order = [](const std::string& text) { return parse_ordered_json(text, "test.json"); };
  EXPECT_EQ(parse_in_order(R"({"z":{"b":1,"a":2},"c":3})").dump(), R"({"z":{"b":1,"a":2},"c":3})");
  const auto keys = [](int n) {
    std::string text = "[{\"\":0";
    for (int i = 1; i < n; ++i) text += ",\"" + std::to_string(i) + "\":0";
    return text + "}]";
  };
  EXPECT_NO_THROW(parse_in_order(keys(4096)));
  expect_error(ErrorKind::kData, {"test.json", "more than 4096 keys"}, [&] { parse_in_order(keys(4097)); });
  EXPECT_NO_THROW(parse(keys(4097)));
  EXPECT_NO_THROW(parse_in_order("\"" + std::string((1 << 20) - 2, 'x') + "\""));
  expect_error(ErrorKind::kData, {"the limit is 1048576"},
               [&] { parse_in_order("\"" + std::string(1 << 20, 'x') + "\""); });
}

TEST(Json, ReadsRegularFilesOnly) {
  const testing::Scratch dir;
  testing::put(dir / "ok.json", "{\"a\": 1}");
  EXPECT_EQ(read_json(dir / "ok.json")["a"], 1);
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  for (const fs::path& p : {dir / "missing.json", dir.root(), dir / "fifo", fs::path("/dev/zero")})
    expect_error(ErrorKind::kModel, {p.string()}, [&] { read_json(p, ErrorKind::kModel); });
}

TEST(Json, CanonicalFormIsTheSameForEqualValues) {
  EXPECT_EQ(canonical_json(parse("{ \"b\" : [ 1 , 2.50 ], \"a\" : \"\\u00e9\" }")), "{\"a\":\"é\",\"b\":[1,2.5]}");
  EXPECT_EQ(canonical_json(parse("{\"a\":\"é\",\"b\":[1,2.5]}")), canonical_json(parse("{\"b\":[1,2.5],\"a\":\"é\"}")));
  expect_error(ErrorKind::kInternal, {"UTF-8"}, [] { canonical_json(Json("\xff")); });
}

TEST(Json, TypedAccessNamesKeyRangeAndFinding) {
  const Json o = parse(R"({"i":5,"f":2.5,"big":18446744073709551615,"s":"x","b":true,"n":null,"neg":-3})");
  const auto integer = [&](const char* key) { return json_int(o, key, {0, 10}, "c.json", ErrorKind::kConfig); };
  EXPECT_EQ(integer("i"), 5);
  expect_error(ErrorKind::kConfig, {"c.json: neg: expected integer in [0, 10], found -3"}, [&] { integer("neg"); });
  for (const char* key : {"f", "big", "s", "b"})
    expect_error(ErrorKind::kConfig, {key, "expected integer"}, [&] { integer(key); });
  for (const char* key : {"n", "absent"}) {
    expect_error(ErrorKind::kConfig, {key, "missing"}, [&] { integer(key); });
    EXPECT_EQ(json_int(o, key, {.low = 0, .high = 10, .fallback = 7}, "c.json", ErrorKind::kConfig), 7);
    EXPECT_EQ(json_double(o, key, {.low = 0, .high = 1, .fallback = 0.5}, "c.json", ErrorKind::kConfig), 0.5);
    EXPECT_TRUE(json_bool(o, key, true, "c.json", ErrorKind::kConfig));
    EXPECT_EQ(json_string(o, key, "d", "c.json", ErrorKind::kConfig), "d");
  }
  EXPECT_EQ(json_double(o, "i", {0, 10}, "c", ErrorKind::kData), 5.0);
  expect_error(ErrorKind::kData, {"number in [0, 1]"}, [&] { json_double(o, "f", {0, 1}, "c", ErrorKind::kData); });
  expect_error(ErrorKind::kData, {"true or false"}, [&] { json_bool(o, "i", false, "c", ErrorKind::kData); });
  expect_error(ErrorKind::kData, {"a string"}, [&] { json_string(o, "i", "c", ErrorKind::kData); });
  expect_error(ErrorKind::kData, {"a JSON object"},
               [&] { json_int(Json::array(), "i", {0, 1}, "c", ErrorKind::kData); });
  expect_error(ErrorKind::kData, {"array of at most 1"},
               [] { json_array(parse(R"({"a":[1,2]})"), "a", 1, "c", ErrorKind::kData); });
  expect_error(ErrorKind::kData, {"object of at most"}, [&] { json_object(o, "i", 9, "c", ErrorKind::kData); });
  expect_error(ErrorKind::kData, {"hexadecimal"}, [&] { json_digest(o, "s", true, "c", ErrorKind::kData); });
}

TEST(Json, CountsByName) {
  const Json o =
      parse(R"({"good":{"a":0,"b":1125899906842624},"negative":{"a":-1},"half":{"a":0.5},"list":[1],"none":null})");
  const auto counts = [&](const char* key) { return json_counts(o, key, "f", ErrorKind::kData); };
  EXPECT_EQ(counts("good"), (std::map<std::string, int64_t>{{"a", 0}, {"b", kMaxCount}}));
  EXPECT_TRUE(counts("absent").empty() && counts("none").empty());
  for (const char* key : {"negative", "half"})
    expect_error(ErrorKind::kData, {std::string("f: ") + key + ": a: expected integer in [0, "}, [&] { counts(key); });
  expect_error(ErrorKind::kData, {"f: list: expected an object"}, [&] { counts("list"); });
}

TEST(Json, RefusesOtherSchemas) {
  EXPECT_NO_THROW(require_schema(parse(R"({"schema":"specdec.data/1"})"), "data", 1, "f"));
  for (const char* text :
       {R"({"schema":"specdec.data/2"})", R"({"schema":"specdec.package/1"})", R"({"schema":1})", R"({})", "[]"})
    expect_error(ErrorKind::kData, {"f"}, [&] { require_schema(parse(text), "data", 1, "f"); });
}

}  // namespace
}  // namespace specdec
