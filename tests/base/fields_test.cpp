#include "base/fields.h"

#include <gtest/gtest.h>

#include "base/field_schema.h"
#include "tests/base/scratch.h"

namespace specdec::fields_test {

using testing::expect_error;

struct Point {
  int x = 0, y = 0;
};
void visit_fields(Fields& f, Point& p) {
  f("x", p.x, {0, 9});
  f("y", p.y, {p.x, 9});
}

struct Part {
  std::string name;
  std::optional<double> share;
};
void visit_fields(Fields& f, Part& p) {
  f.type("Part", "A part of the whole.");
  f("name", p.name);
  f("share", p.share, {0, 1});
}

struct Whole {
  enum class Colour { kRed, kBlue };
  int64_t count = 1;
  std::string text = "a", digest = std::string(64, 'd'), word = "one", note;
  bool flag = false, has_group = false;
  Colour colour = Colour::kBlue;
  std::vector<std::string> names;
  std::vector<double> doubles = {0.5};
  std::vector<Part> parts = {{"p", 0.25}, {"q", {}}};
  std::vector<Point> points = {{1, 2}};
  std::map<int, std::map<std::string, int64_t>> table = {{7, {{"k", 3}}}};
  std::optional<Part> best, chosen;
  Interval ci = {1, 2};
  int inside = 4;
};
constexpr Named<Whole::Colour> kColours[] = {{Whole::Colour::kRed, "red"}, {Whole::Colour::kBlue, "blue"}};
void visit_fields(Fields& f, Whole& w) {
  f.type("Whole", "Everything.");
  f.schema("whole", 3);
  f({"count", "How many there are."}, w.count, {1, 10});
  f(defaulted("text"), w.text);
  f.digest("digest", w.digest);
  f.one_of("word", w.word, {"one", "two", "three"});
  f.one_of("colour", w.colour, kColours);
  f(if_any("note"), w.note);
  f(defaulted("flag"), w.flag);
  f(if_any("names"), w.names);
  f("doubles", w.doubles, {0, 1}, 4);
  f("parts", w.parts, {4, true});
  f.rows("points", w.points, "[x, y]", 3);
  f("table", w.table, MapRule{}, MapRule{}, kAnyCount);
  f("best", w.best);
  f(if_any("chosen"), w.chosen);
  f("ci", w.ci);
  f.group_if("group", w.has_group, [&](Fields& group) { group("inside", w.inside, {0, 5}); });
  f.derived("twice", 2 * w.count);
  if (f.reads() && w.count == 10) f.refuse("count: expected another number than 10");
}

Whole read(const Json& json) { return read_fields<Whole>(json, "w"); }
std::string error_of(const char* pointer, const Json& value) {
  Json json = json_of(Whole());
  json[Json::json_pointer(pointer)] = value;
  return testing::error_of([&] { read(json); }, ErrorKind::kData);
}

TEST(Fields, AreWrittenOnce) {
  const Whole w;
  EXPECT_EQ(json_of(w),
            Json::parse(R"({"schema":"specdec.whole/3","count":1,"text":"a","digest":")" + std::string(64, 'd') +
                        R"(","word":"one","colour":"blue","flag":false,"doubles":[0.5],
    "parts":[{"name":"p","share":0.25},{"name":"q","share":null}],"points":[[1,2]],"table":{"7":{"k":3}},
    "best":null,"ci":[1.0,2.0],"twice":2})"));
}

TEST(Fields, AreReadAsTheyWereWritten) {
  Whole w;
  w.count = 5, w.text = "", w.word = "three", w.colour = Whole::Colour::kRed, w.note = "n", w.flag = true;
  w.names = {"x", ""}, w.doubles = {}, w.best = Part{"b", 1.0}, w.chosen = Part{"c", {}}, w.has_group = true;
  const Json json = json_of(w);
  EXPECT_EQ(json["group"]["inside"], 4);
  EXPECT_EQ(json_of(read(json)), json);
}

// Reads a file of an earlier version, which lacks fields that were added later.
TEST(Fields, MayBeMissingWhereTheyHaveADefault) {
  Json json = json_of(Whole());
  for (const char* key : {"text", "flag", "best", "twice"}) json.erase(key);
  const Whole w = read(json);
  EXPECT_EQ(w.text, "a");
  EXPECT_FALSE(w.flag || w.best || w.chosen || w.has_group);
  for (const char* key : {"schema", "count", "digest", "word", "doubles", "parts", "points", "table", "ci"}) {
    Json without = json;
    without.erase(key);
    expect_error(ErrorKind::kData, {std::string("w: ") + key + ": missing"}, [&] { read(without); });
  }
}

TEST(Fields, ErrorsNameThePathAndWhatWasExpected) {
  EXPECT_EQ(error_of("/count", 11), "w: count: expected integer in [1, 10], found 11");
  EXPECT_EQ(error_of("/count", 10), "w: count: expected another number than 10");
  EXPECT_EQ(error_of("/text", 1), "w: text: expected a string, found 1");
  EXPECT_EQ(error_of("/flag", "x"), "w: flag: expected true or false, found \"x\"");
  EXPECT_EQ(error_of("/word", "four"), "w: word: expected one, two or three, found 'four'");
  EXPECT_EQ(error_of("/colour", "green"), "w: colour: expected red or blue, found 'green'");
  EXPECT_EQ(error_of("/digest", "d"), "w: digest: expected 64 lower-case hexadecimal digits, found \"d\"");
  EXPECT_EQ(error_of("/doubles/0", 2), "w: doubles: expected number in [0, 1], found 2");
  EXPECT_EQ(error_of("/doubles", {0, 0, 0, 0, 0}),
            "w: doubles: expected an array of at most 4 items, found [0,0,0,0,0]");
  EXPECT_EQ(error_of("/parts/1/share", 2), "w: parts[1]: share: expected number in [0, 1], found 2");
  EXPECT_EQ(error_of("/parts/1", 2), "w: parts[1]: expected a JSON object, found 2");
  EXPECT_EQ(error_of("/points/0", {1}), "w: points: expected [x, y]");
  EXPECT_EQ(error_of("/points/0/1", 0), "w: points: y: expected integer in [1, 9], found 0");
  EXPECT_EQ(error_of("/table", {{"x", 1}}), "w: table: expected positive integers as keys, found 'x'");
  EXPECT_EQ(error_of("/table/7/k", -1), "w: table: 7: k: expected integer in [0, 1125899906842624], found -1");
  EXPECT_EQ(error_of("/ci", {2, 1}), "w: ci: expected [low, high]");
  EXPECT_EQ(error_of("/group", {{"inside", 6}}), "w: group: inside: expected integer in [0, 5], found 6");
  expect_error(ErrorKind::kModel, {"w: expected a JSON object, found []"},
               [] { read_fields<Part>(Json::array(), "w", ErrorKind::kModel); });
}

struct Figure {
  std::optional<double> value, low, high;
  bool measured = false;
};
void visit_fields(Fields& f, Figure& figure) {
  f.row("ci", "[low, high]", [&](Fields& ci) {
    ci("low", figure.low);
    ci("high", figure.high);
  });
  f.number_if("value", figure.measured, figure.value);
}

TEST(Fields, NumbersThatAreNotKnownAreNull) {
  Figure figure = {{}, {}, 0.5};
  EXPECT_EQ(json_of(figure).dump(), R"({"ci":[null,0.5]})");
  figure.measured = true;
  EXPECT_EQ(json_of(figure).dump(), R"({"ci":[null,0.5],"value":null})");
  figure.value = 0.25;
  const Json json = json_of(figure);
  const Figure back = read_fields<Figure>(json, "w");
  EXPECT_EQ(back.value, 0.25);
  EXPECT_EQ(back.low, std::nullopt);
  EXPECT_EQ(back.high, 0.5);
  expect_error(ErrorKind::kData, {"w: value: expected a number or null"},
               [] { read_fields<Figure>({{"ci", {0, 1}}, {"value", "x"}}, "w"); });
  expect_error(ErrorKind::kData, {"w: ci: expected [low, high]"}, [] { read_fields<Figure>({{"ci", {0}}}, "w"); });
  Definitions definitions;
  EXPECT_EQ(
      definitions.add([](Fields& f) {
        Figure any;
        f.type("Figure", "");
        visit_fields(f, any);
      }),
      OrderedJson::parse(R"({"type":"object","properties":{"ci":{"type":"array","items":{"type":["null","number"]},
    "minItems":2,"maxItems":2},"value":{"type":["number","null"]}},"required":["ci"]})"));
}

TEST(Fields, AreDescribed) {
  Definitions definitions;
  const OrderedJson whole = definitions.add<Whole>();
  EXPECT_EQ(definitions.json()["Part"].dump(),
            R"({"type":"object","description":"A part of the whole.","properties":{"name":{"type":"string"},)"
            R"("share":{"type":["number","null"],"minimum":0,"maximum":1}},"required":["name","share"]})");
  const auto property = [&](const char* key) { return whole["properties"][key].dump(); };
  EXPECT_EQ(property("schema"), R"({"const":"specdec.whole/3"})");
  EXPECT_EQ(property("count"), R"({"type":"integer","minimum":1,"maximum":10,"description":"How many there are."})");
  EXPECT_EQ(property("word"), R"({"enum":["one","two","three"]})");
  EXPECT_EQ(property("parts"), R"({"type":"array","items":{"$ref":"#/$defs/Part"}})");
  EXPECT_EQ(property("points"), R"({"type":"array","items":{"type":"array","items":{"type":"integer"},)"
                                R"("minItems":2,"maxItems":2}})");
  EXPECT_EQ(property("table"), R"({"type":"object","additionalProperties":{"type":"object",)"
                               R"("additionalProperties":{"type":"integer","minimum":0}}})");
  EXPECT_EQ(property("best"), R"({"anyOf":[{"$ref":"#/$defs/Part"},{"type":"null"}]})");
  EXPECT_EQ(property("chosen"), R"({"$ref":"#/$defs/Part"})");
  EXPECT_EQ(property("group"), R"({"type":"object","properties":{"inside":{"type":"integer","minimum":0,)"
                               R"("maximum":5}},"required":["inside"]})");
  const std::vector<std::string> required = whole["required"];
  for (const char* key : {"note", "names", "chosen", "group"})
    EXPECT_EQ(std::count(required.begin(), required.end(), key), 0) << key << " is written only if there is one";
  EXPECT_EQ(required.size() + 4, whole["properties"].size());
}

}  // namespace specdec::fields_test
