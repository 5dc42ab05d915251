// Checks the table of known but unsupported request fields against the parser, docs/openapi.json and docs/serve.md.
#include "deploy/serve/request/unsupported_fields.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <variant>

#include "base/file.h"
#include "deploy/serve/request/protocol.h"
#include "tests/source_folder.h"

namespace specdec::deploy {
namespace {

// Returns the error for a request with this field, or none if the field is accepted. "PARENT.NAME" is a member of an
// object.
std::optional<ApiError> refusal_of(Endpoint endpoint, const std::string& name, const Json& value) {
  Json body = {{"stream", true}, {"n", 3}};
  if (endpoint == Endpoint::kChat)
    body["messages"] = {{{"role", "user"}, {"content", "a"}}};
  else
    body["prompt"] = "a";
  const size_t dot = name.find('.');
  (dot == std::string::npos ? body[name] : body[name.substr(0, dot)][name.substr(dot + 1)]) = value;
  const auto result = parse_request(endpoint, body.dump(), {});
  const auto* error = std::get_if<ApiError>(&result);
  return error ? std::optional(*error) : std::nullopt;
}

TEST(UnsupportedFields, EveryOtherValueThanTheDefaultIsRefusedByName) {
  for (const UnsupportedField& field : unsupported_fields())
    for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
      const bool refuses = field.only.value_or(endpoint) == endpoint;
      EXPECT_FALSE(refusal_of(endpoint, field.name, nullptr)) << field.name;
      for (const Json& value : field.defaults)
        EXPECT_FALSE(refuses && refusal_of(endpoint, field.name, value)) << field.name << " " << value;
      for (const Json& value : {Json(true), Json(false), Json(7), Json("x"), Json::array({1}), Json({{"a", 1}})}) {
        if (std::find(field.defaults.begin(), field.defaults.end(), value) != field.defaults.end()) continue;
        const auto error = refusal_of(endpoint, field.name, value);
        if (!refuses) continue;  // this row does not apply to the endpoint
        ASSERT_TRUE(error) << field.name << " " << value;
        EXPECT_EQ(error->status, 400);
        EXPECT_EQ(error->code, "unsupported_parameter") << field.name;
        EXPECT_EQ(error->param, field.name);
      }
    }
  EXPECT_FALSE(refusal_of(Endpoint::kChat, "best_of", 3)) << "all of n answers";
  EXPECT_TRUE(refusal_of(Endpoint::kChat, "best_of", 4));
}

TEST(UnsupportedFields, WhatClientsSendBesideIsIgnored) {
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, Json>>{{"store", true},
                                                 {"service_tier", "flex"},
                                                 {"parallel_tool_calls", false},
                                                 {"reasoning_effort", "low"},
                                                 {"verbosity", "low"},
                                                 {"prompt_cache_key", "k"},
                                                 {"safety_identifier", "s"},
                                                 {"user", "u"},
                                                 {"metadata", {{"a", "b"}}},
                                                 {"spaces_between_special_tokens", false},
                                                 {"request_id", "r"},
                                                 {"stream_options.include_obfuscation", true},
                                                 {"never_heard_of", {{"a", {1, 2}}}}})
    for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions})
      EXPECT_FALSE(refusal_of(endpoint, name, value)) << name;
}

TEST(UnsupportedFields, TheDocumentsSayTheSame) {
  const std::filesystem::path docs = std::filesystem::path(source_folder()) / "docs";
  const Json root = read_json(docs / "openapi.json", ErrorKind::kData, {1u << 20, 64});
  const std::string page = read_file(docs / "serve.md");
  for (const UnsupportedField& field : unsupported_fields()) {
    EXPECT_NE(page.find("`" + field.name + "`"), std::string::npos) << field.name << " is not in docs/serve.md";
    for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
      if (field.only.value_or(endpoint) != endpoint || field.or_n) continue;  // a schema cannot express "equal to n"
      Json schema = root["components"]["schemas"][endpoint == Endpoint::kChat ? "ChatRequest" : "CompletionRequest"];
      for (size_t at = 0; at < field.name.size();) {
        const size_t dot = std::min(field.name.find('.', at), field.name.size());
        const std::string key = field.name.substr(at, dot - at);
        ASSERT_TRUE(schema["properties"].contains(key)) << field.name;
        schema = Json(schema["properties"][key]);
        at = dot + 1;
      }
      Json values = Json::array({nullptr});
      for (const Json& value : field.defaults) values.push_back(value);
      EXPECT_EQ(schema["enum"], values) << field.name;
    }
  }
}

TEST(UnsupportedFields, MembersOfGrammarFieldsThatWouldHaveNoEffectAreRefused) {
  const auto param = [](const std::string& more) {
    const auto refused =
        parse_request(Endpoint::kChat, R"({"messages":[{"role":"user","content":"hi"}],)" + more + "}", ServeLimits());
    const auto* error = std::get_if<ApiError>(&refused);
    return error ? error->param : "nothing";
  };
  EXPECT_EQ(param(R"("response_format":{"type":"json_object","json_schema":{"schema":{}}})"), "response_format");
  EXPECT_EQ(param(R"("response_format":{"type":"text","schema":{}})"), "response_format");
  EXPECT_EQ(param(R"("response_format":{"type":"json_object","schema":7})"), "response_format.schema");
  EXPECT_EQ(param(R"("response_format":{"type":"json_schema","json_schema":{"schema":{},"strickt":true}})"),
            "response_format.json_schema");
  EXPECT_EQ(param(R"("structured_outputs":{"jsn":{}})"), "structured_outputs");
  EXPECT_EQ(param(R"("response_format":{"type":"json_object","schema":{"type":"null"},"json_schema":null})"),
            "nothing");
}

}  // namespace
}  // namespace specdec::deploy
