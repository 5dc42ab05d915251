#include "text/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/base/scratch.h"
#include "tests/text/byte_tokenizer.h"
#include "tests/text/shared_data.h"

namespace specdec::text {
namespace {

using testing::byte_tokenizer;
using testing::expect_error;
using testing::kBos;
using testing::kEos;
using testing::kVocab;

const Vocabulary& bytes() {
  static const Vocabulary vocabulary(byte_tokenizer(), kVocab, {kEos});
  return vocabulary;
}

using Bits = std::vector<uint32_t>;

Bits mask(GrammarMatcher& matcher) {
  Bits bits((kVocab + 31) / 32);
  matcher.allowed(bits);
  return bits;
}
bool has(const Bits& bits, int32_t id) { return bits[static_cast<size_t>(id) / 32] >> (id % 32) & 1; }

// Returns whether the grammar allows every byte of `text` at its place, and allows the text to end after its last byte.
bool takes(const Vocabulary& vocabulary, GrammarKind kind, const std::string& source, const std::string& text) {
  const auto matcher = vocabulary.compile(kind, source)->matcher();
  for (const char c : text) {
    if (!has(mask(*matcher), static_cast<unsigned char>(c))) return false;
    matcher->push(static_cast<unsigned char>(c));
  }
  return has(mask(*matcher), kEos);
}

TEST(Grammar, TakesWhatTheSchemaSaysAndNothingElse) {
  const std::string schema =
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":5},"age":{"$ref":"#/$defs/age"}},
    "required":["name","age"],
    "additionalProperties":false,"$defs":{"age":{"type":"integer","minimum":0,"maximum":150}}})";
  const auto taken = [&](const std::string& text) { return takes(bytes(), GrammarKind::kJsonSchema, schema, text); };
  EXPECT_TRUE(taken(R"({"name":"Ada","age":36})"));
  EXPECT_TRUE(taken(R"({ "name": "é\n", "age": 0 })"));
  EXPECT_FALSE(taken(R"({"age":36,"name":"Ada"})")) << "properties come in the order of the schema";
  EXPECT_FALSE(taken(R"({"name":"Ada","age":151})"));
  EXPECT_FALSE(taken(R"({"name":"Ada Lovelace","age":36})"));
  EXPECT_FALSE(taken(R"({"name":"Ada"})"));
  EXPECT_FALSE(taken(R"({"name":"Ada","age":36)")) << "not ended";
  EXPECT_FALSE(taken(R"({"name":"Ada","age":36,"x":1})"));
  EXPECT_TRUE(taken("{\n    \"name\": \"Ada\",\n    \"age\": 36\n}"));
  EXPECT_FALSE(taken("{\n\n    \"name\": \"Ada\",\n    \"age\": 36\n}")) << "white space is a line and its indentation";
  EXPECT_FALSE(taken("{" + std::string(2, ' ') + R"("name":"Ada","age":36})"));
  EXPECT_TRUE(takes(bytes(), GrammarKind::kJsonSchema, R"({"type":"object"})", R"({"a":[1,{"b":null}],"c":-2.5e3})"));
}

// A vocabulary may lack the characters that a grammar requires. Then no token is allowed; this is no error, and pop()
// works.
TEST(Grammar, ADeadEndIsAnEmptyMask) {
  const testing::Scratch directory;
  testing::write_tokenizer(directory.root(), {{"a", 0}, {"b", 1}}, 2, 3);
  const Vocabulary vocabulary(Tokenizer(directory.root()), 4, {3});
  const auto matcher = vocabulary.compile(GrammarKind::kRegex, "a[cd]|b+")->matcher();
  const auto allowed = [&]() -> int64_t {
    Bits bits(1);
    return matcher->allowed(bits) ? static_cast<int64_t>(bits[0]) : -1;
  };
  EXPECT_EQ(allowed(), 0b11);
  matcher->push(0);
  EXPECT_EQ(allowed(), 0);
  EXPECT_EQ(allowed(), 0) << "asked again";
  matcher->pop(1);
  EXPECT_EQ(allowed(), 0b11);
  matcher->push(1);
  EXPECT_EQ(allowed(), 0b1010) << "more, or the end";
}

TEST(Grammar, TakesWholeTextsOfARegularExpression) {
  const auto taken = [](const std::string& regex, const std::string& text) {
    return takes(bytes(), GrammarKind::kRegex, regex, text);
  };
  EXPECT_TRUE(taken("(yes|no)!?", "no!"));
  EXPECT_FALSE(taken("(yes|no)!?", "nope"));
  EXPECT_FALSE(taken("(yes|no)!?", "ye"));
  EXPECT_TRUE(taken(R"(\d{4}/\d\d)", "2026/11"));
  EXPECT_TRUE(taken("[α-ω]+", "λόγος") == false) << "ό is outside of the range";
  EXPECT_TRUE(taken("[α-ω]+", "λογ"));
}

// llguidance 1.9.1 accepts the integer of an exclusive bound if the other bound is less than 1 away.
TEST(Grammar, AnExcludedBoundIsNeverTaken) {
  const auto taken = [](const std::string& bounds, const std::string& text) {
    return takes(bytes(), GrammarKind::kJsonSchema, R"({"type":"number",)" + bounds + "}", text);
  };
  const struct {
    const char *bounds, *inside, *outside;
  } cases[] = {
      {R"("exclusiveMinimum":0,"maximum":0.5)", "0.3", "0"},
      {R"("exclusiveMinimum":0,"maximum":0.5)", "0.5", "0.0"},
      {R"("exclusiveMinimum":2,"maximum":2.5)", "2.25", "2"},
      {R"("exclusiveMinimum":2.0,"maximum":2.5)", "2.25", "2.0"},
      {R"("minimum":-0.5,"exclusiveMaximum":0)", "-0.25", "0"},
      {R"("minimum":-2.5,"exclusiveMaximum":-2)", "-2.5", "-2"},
      {R"("minimum":0,"exclusiveMinimum":true,"maximum":0.5)", "0.3", "0"},
      {R"("exclusiveMinimum":0,"maximum":1)", "1", "0"},
      {R"("exclusiveMinimum":0)", "7.5", "0"},
      {R"("exclusiveMinimum":0.25,"maximum":0.5)", "0.26", "0.25"},
  };
  for (const auto& c : cases) {
    EXPECT_TRUE(taken(c.bounds, c.inside)) << c.bounds << " " << c.inside;
    EXPECT_FALSE(taken(c.bounds, c.outside)) << c.bounds << " " << c.outside;
  }
  const std::string nested =
      R"({"type":"object","properties":{"default":{"type":"array","items":{"exclusiveMinimum":0,"maximum":0.5,)"
      R"("type":"number"}}},"required":["default"],"additionalProperties":false})";
  EXPECT_TRUE(takes(bytes(), GrammarKind::kJsonSchema, nested, R"({"default":[0.1]})"));
  EXPECT_FALSE(takes(bytes(), GrammarKind::kJsonSchema, nested, R"({"default":[0]})"));
  EXPECT_TRUE(takes(bytes(), GrammarKind::kJsonSchema, R"({"type":"integer","exclusiveMinimum":0,"maximum":3})", "1"));
  EXPECT_FALSE(takes(bytes(), GrammarKind::kJsonSchema, R"({"type":"integer","exclusiveMinimum":0})", "0"));
}

// llguidance keeps numbers as doubles, which cannot represent every integer above 2^53.
TEST(Grammar, BoundsBeyondDoublesAllowNothingOutside) {
  const auto taken = [](const std::string& bounds, const std::string& text) {
    return takes(bytes(), GrammarKind::kJsonSchema, R"({"type":"integer",)" + bounds + "}", text);
  };
  const std::string narrow = R"("minimum":9007199254740993,"maximum":9007199254740995)";
  EXPECT_TRUE(taken(narrow, "9007199254740994"));
  EXPECT_FALSE(taken(narrow, "9007199254740992"));
  EXPECT_FALSE(taken(narrow, "9007199254740996"));
  EXPECT_FALSE(taken(R"("exclusiveMaximum":-9007199254740993)", "-9007199254740993"));
  EXPECT_TRUE(taken(R"("minimum":0,"maximum":9223372036854775807)", "1795000000000000001")) << "the bound of 64 bits";
  EXPECT_FALSE(taken(R"("maximum":9223372036854775807)", "9223372036854775808"));
  for (const char* refused : {R"({"const":9007199254740993})", R"({"enum":[1,9007199254740993]})",
                              R"({"type":"integer","minimum":18446744073709551615})",
                              R"({"type":"number","exclusiveMinimum":600000000000000})"})
    EXPECT_THROW((void)bytes().compile(GrammarKind::kJsonSchema, refused), Error) << refused;
  EXPECT_TRUE(takes(bytes(), GrammarKind::kJsonSchema, R"({"const":9007199254740992})", "9007199254740992"));
}

// Once a mask has exceeded its bound on work, as with this regular expression, no later mask is computed.
TEST(Grammar, AMaskBeyondItsBoundFailsForGood) {
  const auto matcher = bytes().compile(GrammarKind::kRegex, "(([^q]*[aeiou][^z]{1,14}){1,40})")->matcher();
  const size_t before = matcher->bytes();
  Bits bits((kVocab + 31) / 32);
  int steps = 0;
  for (; steps < 2000 && matcher->allowed(bits); ++steps) matcher->push("aebicodu "[steps % 9]);
  EXPECT_GT(matcher->bytes(), before) << "the tables grow with the text";
  if (steps < 2000) {
    EXPECT_FALSE(matcher->allowed(bits));
    EXPECT_EQ(bits, Bits((kVocab + 31) / 32)) << "nothing is allowed";
  }
}

// After the end of the text only end-of-text tokens are allowed, however many of them are pushed, and also after pops.
TEST(Grammar, StaysAtItsEnd) {
  const auto matcher = bytes().compile(GrammarKind::kRegex, "ab")->matcher();
  Bits end((kVocab + 31) / 32);
  end[kEos / 32] = 1u << (kEos % 32);
  matcher->push('a');
  const Bits before = mask(*matcher);
  matcher->push('b');
  EXPECT_EQ(mask(*matcher), end);
  for (int i = 0; i < 5; ++i) {
    matcher->push(kEos);
    EXPECT_EQ(mask(*matcher), end);
  }
  matcher->pop(3);
  EXPECT_EQ(mask(*matcher), end);
  matcher->pop(3);  // removes two end-of-text tokens and the b
  EXPECT_EQ(mask(*matcher), before);
  EXPECT_TRUE(has(before, 'b') && !has(before, kEos));
}

// After any pushes and pops, the mask equals that of a new matcher with the same tokens.
TEST(Grammar, TakingBackLeavesNoTrace) {
  const auto grammar =
      bytes().compile(GrammarKind::kJsonSchema, R"({"type":"array","items":{"enum":["a","bc",true,12]}})");
  const auto walker = grammar->matcher();
  std::string text;
  std::map<std::string, Bits> seen;
  uint64_t state = 12345;
  const auto draw = [&state](size_t n) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<size_t>(state >> 33) % n;
  };
  for (int i = 0; i < 600; ++i) {
    const Bits here = mask(*walker);
    const auto known = seen.find(text);
    if (known == seen.end()) {
      const auto direct = grammar->matcher();
      for (const char c : text) direct->push(static_cast<unsigned char>(c));
      EXPECT_EQ(here, mask(*direct)) << text;
      seen[text] = here;
    } else {
      EXPECT_EQ(here, known->second) << text;
    }
    std::vector<int32_t> next;
    for (int32_t id = 0; id < 256; ++id)
      if (has(here, id) && id != ' ' && id != '\n' && id != '\t' && id != '\r') next.push_back(id);
    if (!text.empty() && (next.empty() || text.size() > 40 || draw(3) == 0)) {
      const size_t count = 1 + draw(std::min<size_t>(4, text.size()));
      walker->pop(static_cast<int64_t>(count));
      text.erase(text.size() - count);
    } else {
      const int32_t id = next[draw(next.size())];
      walker->push(id);
      text += static_cast<char>(id);
    }
  }
  EXPECT_GT(seen.size(), 40u);
}

TEST(Grammar, WhatCannotBeUsedIsAnErrorOfOneLine) {
  const auto refused = [](GrammarKind kind, const std::string& source) {
    expect_error(ErrorKind::kData, {kind == GrammarKind::kRegex ? "regular expression" : "JSON schema"},
                 [&] { bytes().compile(kind, source); });
  };
  for (const char* regex : {"(a", "[z-a]", "a{5,2}", "(?=a)b"}) refused(GrammarKind::kRegex, regex);
  for (const char* schema : {"{", "7", R"({"type":"nothing"})", R"({"$ref":"http://example.org/x"})",
                             R"({"$ref":"#/missing"})", R"({"enum":[]})", "false", R"({"type":"string","pattern":"("})",
                             R"({"type":"integer","minimum":3,"maximum":2})"})
    refused(GrammarKind::kJsonSchema, schema);
  refused(GrammarKind::kRegex, std::string(70000, 'a'));
  expect_error(ErrorKind::kModel, {"end-of-text"}, [] { Vocabulary(byte_tokenizer(), kVocab, {}); });
  expect_error(ErrorKind::kModel, {"end-of-text"}, [] { Vocabulary(byte_tokenizer(), kVocab, {kVocab}); });
}

// A schema that applies itself to the same value has no meaning and is refused. A schema that applies itself to a part
// of the value, such as that of a tree, is allowed.
TEST(Grammar, ASchemaThatAppliesItselfIsRefused) {
  for (const char* endless : {R"({"$ref":"#"})", R"({"allOf":[{"type":"object"},{"$ref":"#"}]})",
                              R"({"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},
            "$defs":{"a":{"$ref":"#/$defs/a","type":"object"}}})",
                              R"({"type":"array","items":{"$ref":"#/$defs/a"},
            "$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"$ref":"#/$defs/a"}}})"})
    expect_error(ErrorKind::kData, {"JSON schema", "a $ref leads back to itself"},
                 [&] { bytes().compile(GrammarKind::kJsonSchema, endless); });
  for (const char* taken : {R"({"type":"object","properties":{"left":{"$ref":"#"},"right":{"$ref":"#"}}})",
                            R"({"anyOf":[{"type":"integer"},{"type":"array","items":{"$ref":"#"}}]})",
                            R"({"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"},{"$ref":"#/$defs/b"}]},
            "b":{"type":"integer"}}})",
                            R"({"type":"object","properties":{"$ref":{"type":"integer"}}})"})
    EXPECT_NO_THROW(bytes().compile(GrammarKind::kJsonSchema, taken)) << taken;
}

// Hostile grammars give an error, or a matcher whose steps are bounded. None hangs or crashes.
TEST(Grammar, HostileGrammarsAreBounded) {
  std::string nested, wide = R"({"anyOf":[)", deep = "{}";
  for (int i = 0; i < 3000; ++i) nested += "(a|";
  nested += "b" + std::string(3000, ')');
  for (int i = 0; i < 2000; ++i) wide += std::string(i ? "," : "") + R"({"const":")" + std::to_string(i * 7919) + "\"}";
  wide += "]}";
  for (int i = 0; i < 100; ++i) deep = R"({"type":"array","items":)" + deep + "}";
  const std::vector<std::pair<GrammarKind, std::string>> hostile = {
      {GrammarKind::kRegex, nested},
      {GrammarKind::kRegex, "((((a{1,900}){1,900}){1,900}){1,900}b){1,900}"},
      {GrammarKind::kRegex, "(.*a){40}"},
      {GrammarKind::kRegex, "(a|aa|aaa|aaaa)*b.*(a|b){500}c"},
      {GrammarKind::kRegex, ".*[ab].{200}"},
      {GrammarKind::kJsonSchema, wide},
      {GrammarKind::kJsonSchema, deep},
      {GrammarKind::kJsonSchema, R"({"$ref":"#"})"},
      {GrammarKind::kJsonSchema, R"({"allOf":[{"$ref":"#"},{"$ref":"#"}]})"},
      {GrammarKind::kJsonSchema,
       R"({"type":"array","minItems":1000000,"maxItems":2000000,"items":{"type":"array","minItems":100000}})"},
      {GrammarKind::kJsonSchema, R"({"type":"string","minLength":1000000})"},
      {GrammarKind::kJsonSchema, R"({"type":"string","pattern":"((((a{1,99}){1,99}){1,99}){1,99}){1,99}"})"},
  };
  for (const auto& [kind, source] : hostile) {
    try {
      const auto matcher = bytes().compile(kind, source)->matcher();
      for (int step = 0; step < 50; ++step) {
        const Bits bits = mask(*matcher);
        int32_t id = 0;
        while (id < kVocab && !has(bits, id)) ++id;
        if (id == kVocab) break;
        matcher->push(id);
      }
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kData) << source.substr(0, 60) << ": " << e.what();
    }
  }
}

// Returns `count` links, each an object under $defs that refers to the next one. `link` is the object, in which "@"
// stands for the reference.
std::string chain(int count, const std::string& link) {
  const auto to = [&link](int i) {
    std::string text = link;
    text.replace(text.find('@'), 1, R"({"$ref":"#/$defs/)" + std::to_string(i) + "\"}");
    return text;
  };
  std::string defs;
  for (int i = 0; i < count; ++i) defs += "\"" + std::to_string(i) + "\":" + to(i + 1) + ",";
  std::string root = to(0);
  return root.substr(0, root.size() - 1) + R"(,"$defs":{)" + defs + "\"" + std::to_string(count) +
         R"(":{"type":"integer"}}})";
}

const std::vector<std::string>& links() {
  static const std::vector<std::string> all = {
      R"({"anyOf":[@]})",
      R"({"anyOf":[@,{"type":"null"}]})",
      R"({"allOf":[@]})",
      R"({"allOf":[@,{"minimum":1}]})",
      R"({"allOf":[{"anyOf":[{"type":"string"},{"type":"integer"}]},@]})",
      R"({"type":"object","properties":{"a":@}})",
      R"({"type":"object","properties":{"a":@},"required":["a"],"additionalProperties":false})",
      R"({"type":"object","additionalProperties":@})",
      R"({"type":"object","patternProperties":{"^a":@}})",
      R"({"type":"array","items":@})",
      R"({"type":"array","prefixItems":[@],"minItems":1})",
      R"({"items":@})",
      R"({"properties":{"a":@}})",
      R"({"minimum":1,"allOf":[{"minimum":2,"allOf":[@]}]})",
  };
  return all;
}

// Schemas with long chains of references, up to 64 KiB, are refused before any code recurses along the chains.
TEST(Grammar, ChainsOfReferencesAreRefusedByTheirLength) {
  for (const std::string& link : links()) {
    const std::string schema = chain(1300, link);
    if (schema.size() > (64u << 10)) continue;
    expect_error(ErrorKind::kData, {"JSON schema: nested ", "levels deep with its $refs followed, at most 512"},
                 [&] { bytes().compile(GrammarKind::kJsonSchema, schema); });
  }
  std::string bare = R"({"$ref":"#/$defs/0","$defs":{)";
  for (int i = 0; i < 1300; ++i)
    bare += "\"" + std::to_string(i) + R"(":{"$ref":"#/$defs/)" + std::to_string(i + 1) + "\"},";
  expect_error(ErrorKind::kData, {"nested 1303 levels"},
               [&] { bytes().compile(GrammarKind::kJsonSchema, bare + R"("1300":{}}})"); });
  // Each definition of this ring leads to all others, so a compiler may nest all of them.
  std::string ring = R"({"$ref":"#/$defs/0","$defs":{)";
  for (int i = 0; i < 600; ++i)
    ring += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"type":"array","items":{"$ref":"#/$defs/)" +
            std::to_string((i + 1) % 600) + "\"}}";
  expect_error(ErrorKind::kData, {"nested 1"}, [&] { bytes().compile(GrammarKind::kJsonSchema, ring + "}}"); });
}

// For chains at the bound and just below it, no worker overflows its stack while it checks a grammar. A check has half
// the stack of a compilation, so a chain that passes a check can be compiled.
TEST(Grammar, TheLongestChainsThatAreTakenFitTheStack) {
  const GrammarChecker checker({768u << 20, 20, 60});
  for (const std::string& link : links()) {
    int taken = 0, refused = 0;
    for (int count = 520; count > 40 && taken < 3; --count) {
      std::string why;
      try {
        checker.check(GrammarKind::kJsonSchema, chain(count, link));
        ++taken;
      } catch (const Error& e) {
        why = e.what();
        refused += why.find("levels deep with its $refs followed") != std::string::npos;
      }
      ASSERT_EQ(why.find("was ended"), std::string::npos) << link << " × " << count << ": " << why;
    }
    EXPECT_GT(refused, 0) << link;
    EXPECT_TRUE(taken > 0 || link.find("patternProperties") != std::string::npos) << link;
  }
}

TEST(Grammar, WhatPeopleWriteIsFarFromTheBound) {
  // This schema has many flat definitions and a recursive one.
  std::string many = R"({"type":"object","properties":{)",
              defs = R"("tree":{"type":"object","properties":{"v":{"type":"integer"},"kids":{"type":"array",)"
                     R"("items":{"$ref":"#/$defs/tree"}}}})";
  for (int i = 0; i < 700; ++i) {
    many += (i ? ",\"p" : "\"p") + std::to_string(i) + R"(":{"$ref":"#/$defs/d)" + std::to_string(i) + "\"}";
    defs += ",\"d" + std::to_string(i) + R"(":{"type":"null"})";
  }
  EXPECT_NO_THROW(
      bytes().compile(GrammarKind::kJsonSchema, many + R"(,"t":{"$ref":"#/$defs/tree"}},"$defs":{)" + defs + "}}"));
}

TEST(Grammar, DeepRegularExpressionsAreRefused) {
  for (const char* open : {"(", "(?:", "(a|", "[[", "(?i:"})
    for (const int depth : {300, 5000, 20000}) {
      std::string regex;
      for (int i = 0; i < depth; ++i) regex += open;
      regex += 'b' + std::string(static_cast<size_t>(depth) * (open[0] == '[' ? 2 : 1), open[0] == '[' ? ']' : ')');
      expect_error(ErrorKind::kData, {"regular expression"}, [&] { bytes().compile(GrammarKind::kRegex, regex); });
      if (regex.size() < 60000)
        expect_error(ErrorKind::kData, {"JSON schema"}, [&] {
          bytes().compile(GrammarKind::kJsonSchema, Json{{"type", "string"}, {"pattern", regex}}.dump());
        });
    }
}

// Returns a schema of 37 kB that requires more intersections than any machine has memory for.
std::string explosive() {
  std::string defs = R"("big":{"type":"object","properties":{"x":{"type":"object","properties":{)";
  for (int i = 0; i < 1200; ++i) defs += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"type":"string"})";
  defs += R"(}}}})";
  for (int level = 0; level < 4; ++level) {
    std::string any;
    for (int i = 0; i < 40; ++i)
      any += (i ? "," : "") + std::string(R"({"type":"object","properties":{"k)") + std::to_string(level) +
             R"(":{"const":)" + std::to_string(i) + "}}}";
    defs += ",\"l" + std::to_string(level) + R"(":{"allOf":[{"anyOf":[)" + any + R"(]},{"$ref":"#/$defs/)" +
            (level ? "l" + std::to_string(level - 1) : "big") + "\"}]}";
  }
  return R"({"$ref":"#/$defs/l3","$defs":{)" + defs + "}}";
}

TEST(GrammarChecker, SaysWhatCompilingWouldSay) {
  const GrammarChecker checker;
  const std::pair<GrammarKind, std::string> cases[] = {{GrammarKind::kRegex, "(a"},
                                                       {GrammarKind::kRegex, "(yes|no)"},
                                                       {GrammarKind::kJsonSchema, "{"},
                                                       {GrammarKind::kJsonSchema, "false"},
                                                       {GrammarKind::kJsonSchema, R"({"type":"integer"})"},
                                                       {GrammarKind::kJsonSchema, chain(1300, R"({"anyOf":[@]})")}};
  for (const auto& [kind, source] : cases) {
    const auto words = [&](const std::function<void()>& f) -> std::string {
      try {
        f();
        return "";
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::kData);
        return e.what();
      }
    };
    EXPECT_EQ(words([&] { checker.check(kind, source); }), words([&] { bytes().compile(kind, source); }))
        << source.substr(0, 60);
  }
}

TEST(GrammarChecker, SaysHowMuchAGrammarHolds) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a grammar's size comes from malloc's own figures, which the sanitizers' allocators do not keep";
#endif
  const GrammarChecker checker;
  Json schema = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 400; ++i) schema["properties"]["name" + std::to_string(i)] = {{"type", "string"}};
  const size_t small = checker.check(GrammarKind::kRegex, "a"),
               large = checker.check(GrammarKind::kJsonSchema, schema.dump());
  EXPECT_GT(small, 1000u);
  EXPECT_GT(large, 4 * small);
  EXPECT_NEAR(static_cast<double>(checker.check(GrammarKind::kJsonSchema, schema.dump())), static_cast<double>(large),
              0.05 * static_cast<double>(large))
      << "what the first left behind is not counted again";
}

TEST(GrammarChecker, AGrammarWithoutBoundsCostsItsOwnRequest) {
  const GrammarChecker checker({256u << 20, 1, 30});
  ASSERT_LE(explosive().size(), 64u << 10);
  for (int i = 0; i < 2; ++i)
    expect_error(ErrorKind::kData, {"JSON schema: compiling it was ended", "256 MiB or 1 s"},
                 [&] { checker.check(GrammarKind::kJsonSchema, explosive()); });
  EXPECT_NO_THROW(checker.check(GrammarKind::kJsonSchema, R"({"type":"integer"})"));
}

TEST(TokenBytes, AreTheBytesOfEveryToken) {
  const TokenBytes table = byte_tokenizer().token_bytes(kVocab + 2);
  ASSERT_EQ(table.tokens.size(), static_cast<size_t>(kVocab) + 2);
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(table.tokens[static_cast<size_t>(byte)], std::string(1, static_cast<char>(byte)));
  EXPECT_EQ(table.tokens[kBos], "<s>");
  EXPECT_EQ(table.tokens[kVocab], "") << "no token has this id";
  EXPECT_EQ(table.special, (std::vector<int32_t>{kBos, kEos}));
}

// The bytes of a text's tokens, joined, equal the text. This is tested for byte-level vocabularies and for one of
// SentencePiece, which puts a space before the text.
TEST(TokenBytes, JoinToTheTextForRealVocabularies) {
  const auto data = test::shared_data();
  SKIP_WITHOUT(data);
  const std::string text = "Hello, wörld!  \n\tint x = 1234; // 日本語 \U0001F600 naïve";
  int found = 0;
  for (const auto& [directory, lead] : {std::pair{"tokenizers/gpt2", ""},
                                        {"tokenizers/qwen2", ""},
                                        {"llama2-tokenizer", " "},
                                        {"models/stories260K", " "}}) {
    if (!std::filesystem::exists(data / directory / "tokenizer.json")) continue;
    ++found;
    const Tokenizer tokenizer(data / directory);
    const TokenBytes table = tokenizer.token_bytes(tokenizer.vocab_size());
    std::string joined;
    for (const int32_t id : tokenizer.encode(text, false)) joined += table.tokens.at(static_cast<size_t>(id));
    EXPECT_EQ(joined, lead + text) << directory;
  }
  EXPECT_GE(found, 2);
}

}  // namespace
}  // namespace specdec::text
