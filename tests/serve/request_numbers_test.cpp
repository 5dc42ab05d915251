// Checks the table of numeric request fields against the parser, just inside and outside of every limit, and against
// docs/openapi.json.
#include "deploy/serve/request/request_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "base/json.h"
#include "deploy/serve/request/protocol.h"
#include "engine/decode/sampling/logits_processors.h"
#include "tests/source_folder.h"

namespace specdec::deploy {
namespace {

constexpr ServeLimits kLimits;
const Endpoint kBoth[] = {Endpoint::kChat, Endpoint::kCompletions};

std::string body_with(Endpoint endpoint, const std::string& name, const std::string& value) {
  if (name == "prompt[]") return "{\"prompt\":[" + value + "]}";
  const std::string field = name == "logit_bias{}" ? "\"logit_bias\":{\"7\":" + value + "}"
                            : name.ends_with("[]") ? "\"" + name.substr(0, name.size() - 2) + "\":[" + value + "]"
                                                   : "\"" + name + "\":" + value;
  const std::string beside = endpoint == Endpoint::kChat
                                 ? R"("messages":[{"role":"user","content":"a"}],"logprobs":true)"
                                 : R"("prompt":"a","echo":true)";
  return "{" + beside + "," + field + "}";
}

bool accepted(Endpoint endpoint, const std::string& name, const std::string& value) {
  const auto result = parse_request(endpoint, body_with(endpoint, name, value), kLimits);
  if (std::holds_alternative<ApiRequest>(result)) return true;
  const ApiError& error = std::get<ApiError>(result);
  EXPECT_EQ(error.status, 400) << name << ": " << value;
  EXPECT_EQ(error.param, name.substr(0, name.find_first_of("[{"))) << name << ": " << value;
  return false;
}

std::string digits(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", x);
  return text;
}

TEST(RequestNumbers, TheParserTakesExactlyWhatTheTableSays) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const RequestNumber& row : request_numbers())
    for (const Endpoint endpoint : kBoth) {
      if (row.only.value_or(endpoint) != endpoint) continue;
      if (const auto* range = std::get_if<IntegerRange>(&row.range)) {
        EXPECT_TRUE(accepted(endpoint, row.name, std::to_string(range->low)) &&
                    accepted(endpoint, row.name, std::to_string(range->high)))
            << row.name;
        EXPECT_FALSE(range->low > std::numeric_limits<int64_t>::min() &&
                     accepted(endpoint, row.name, std::to_string(range->low - 1)))
            << row.name;
        EXPECT_FALSE(range->high < std::numeric_limits<int64_t>::max() &&
                     accepted(endpoint, row.name, std::to_string(range->high + 1)))
            << row.name;
        for (const char* other : {"18446744073709551615", "-9223372036854775809", "1.0", "1e0", "true", "{}"})
          EXPECT_FALSE(accepted(endpoint, row.name, other)) << row.name;
        continue;
      }
      const auto& range = std::get<NumberRange>(row.range);
      for (const double x : {range.low, range.high, std::nextafter(range.low, -inf), std::nextafter(range.high, inf),
                             std::nextafter(range.high, -inf), 0.0, 5e-324, 1e-310, 1e-60, 1e-40, 1.17e-38, 1e-38,
                             -1e-40, 1e308, -1e308})
        EXPECT_EQ(accepted(endpoint, row.name, digits(x)), range.contains(x)) << row.name << ": " << digits(x);
      for (const char* other : {"true", "\"1\"", "[]"}) EXPECT_FALSE(accepted(endpoint, row.name, other)) << row.name;
    }
}

TEST(RequestNumbers, WhatTheTableTakesTheEngineTakes) {
  for (const char* name : {"temperature", "top_p", "min_p"})
    for (const double x : {std::get<NumberRange>(request_number(Endpoint::kChat, name).range).low,
                           std::get<NumberRange>(request_number(Endpoint::kChat, name).range).high}) {
      const auto result = parse_request(Endpoint::kChat, body_with(Endpoint::kChat, name, digits(x)), kLimits);
      const auto* request = std::get_if<ApiRequest>(&result);
      EXPECT_TRUE(request || (std::string(name) == "min_p" && x == 1)) << name << ": " << x;
      EXPECT_NO_THROW(validate(request ? request->options.sampling : SamplingOptions())) << name << ": " << x;
    }
  for (const char* name : {"presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias{}"}) {
    const auto& range = std::get<NumberRange>(request_number(Endpoint::kChat, name).range);
    for (const double x : {range.low, range.high}) {
      const auto result = parse_request(Endpoint::kChat, body_with(Endpoint::kChat, name, digits(x)), kLimits);
      ASSERT_TRUE(std::holds_alternative<ApiRequest>(result)) << name;
      EXPECT_NO_THROW(decode::validate(std::get<ApiRequest>(result).rules, 8)) << name << ": " << x;
    }
  }
}

// A number in the OpenAPI document. `schema` has its limits; if the document says anyOf with {"const": 0}, `or_zero` is
// true and `schema` is the other alternative.
struct Documented {
  Json schema;
  bool or_zero = false;
};

void numbers_of(const Json& schema, const Json& root, const std::string& name, std::map<std::string, Documented>& out) {
  if (schema.contains("$ref"))
    return numbers_of(root.at(Json::json_pointer(schema.at("$ref").get<std::string>().substr(1))), root, name, out);
  const Json type = schema.value("type", Json());
  const auto is = [&](const char* word) {
    return type == word || (type.is_array() && std::find(type.begin(), type.end(), word) != type.end());
  };
  if (is("number") || is("integer")) out[name].schema = schema;
  const auto any = schema.find("anyOf");
  for (const Json& one : any == schema.end() ? Json::array() : *any) {
    numbers_of(one, root, name, out);
    if (one.contains("const") && one["const"] == 0) out[name].or_zero = true;
  }
  if (any != schema.end() && schema.contains("default") && out.contains(name))
    out[name].schema["default"] = schema["default"];
  if (is("array") && schema.contains("items"))
    numbers_of(schema["items"], root, name.ends_with("[]") ? name : name + "[]", out);
  if (schema.contains("patternProperties"))
    for (const auto& [pattern, value] : schema["patternProperties"].items()) numbers_of(value, root, name + "{}", out);
}

TEST(RequestNumbers, TheDocumentSaysTheSame) {
  const Json root =
      read_json(std::filesystem::path(source_folder()) / "docs/openapi.json", ErrorKind::kData, {1u << 20, 64});
  for (const Endpoint endpoint : kBoth) {
    const Json& schema =
        root["components"]["schemas"][endpoint == Endpoint::kChat ? "ChatRequest" : "CompletionRequest"];
    std::map<std::string, Documented> documented;
    for (const auto& [name, value] : schema["properties"].items()) numbers_of(value, root, name, documented);
    std::set<std::string> expected;
    for (const RequestNumber& row : request_numbers()) {
      if (row.only.value_or(endpoint) != endpoint) continue;
      ASSERT_TRUE(documented.contains(row.name)) << row.name;
      expected.insert(row.name);
      const Documented& found = documented[row.name];
      const bool integer = std::holds_alternative<IntegerRange>(row.range);
      EXPECT_NE(found.schema["type"].dump().find(integer ? "\"integer\"" : "\"number\""), std::string::npos)
          << row.name;
      EXPECT_EQ(found.schema.value("default", Json()), row.fallback ? Json(*row.fallback) : Json()) << row.name;
      if (const auto* range = std::get_if<IntegerRange>(&row.range)) {
        EXPECT_EQ(found.schema["minimum"].get<int64_t>(), range->low) << row.name;
        EXPECT_EQ(found.schema["maximum"].get<int64_t>(), range->high) << row.name;
        continue;
      }
      const auto& range = std::get<NumberRange>(row.range);
      EXPECT_EQ(found.schema["minimum"].get<double>(), range.low) << row.name;
      EXPECT_EQ(found.schema[range.below_high ? "exclusiveMaximum" : "maximum"].get<double>(), range.high) << row.name;
      EXPECT_EQ(found.or_zero, range.or_zero) << row.name;
      EXPECT_FALSE(found.schema.contains("exclusiveMinimum") ||
                   found.schema.contains(range.below_high ? "maximum" : "exclusiveMaximum"))
          << row.name;
    }
    for (const auto& [name, number] : documented)
      EXPECT_TRUE(expected.contains(name)) << name << " is in docs/openapi.json and not in the table";
  }
}

}  // namespace
}  // namespace specdec::deploy
