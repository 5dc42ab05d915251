// Tests the requests of `specdec demo --model`.
#include "cli/demo/service_prompts.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "base/error.h"
#include "tests/base/scratch.h"
#include "tests/source_folder.h"

namespace specdec::cli {
namespace {

const std::filesystem::path kFile = std::filesystem::path(source_folder()) / "cli/demo/assets/prompts.json";

TEST(ServicePrompts, AreTheSameForTheSameSeed) {
  const ServicePrompts prompts(kFile);
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(prompts.at(7, i).messages, prompts.at(7, i).messages);
  int same = 0;
  for (int64_t i = 0; i < 50; ++i) same += prompts.at(7, i).messages == prompts.at(8, i).messages;
  EXPECT_LT(same, 10);
}

TEST(ServicePrompts, TheAnswerHasTheWordsOfTheRequest) {
  const ServicePrompts prompts(kFile);
  std::set<std::string> domains, functions;
  int64_t narrow = 0;
  for (int64_t i = 0; i < 600; ++i) {
    const ServicePrompt prompt = prompts.at(1, i);
    domains.insert(prompt.domain);
    const std::string asked = prompt.messages.back().at("content");
    EXPECT_EQ(asked.find('{'), std::string::npos) << asked;
    EXPECT_EQ(prompt.messages.back().at("role"), "user");
    if (prompt.domain != prompts.domains().front()) {
      EXPECT_TRUE(prompt.answer.empty());
      continue;
    }
    ++narrow;
    const Json call = Json::parse(prompt.answer);
    functions.insert(call.at("name").get<std::string>());
    for (const auto& [name, value] : call.at("arguments").items())
      EXPECT_NE(asked.find(value.get<std::string>()), std::string::npos) << asked << " " << prompt.answer;
  }
  EXPECT_EQ(domains, std::set<std::string>(prompts.domains().begin(), prompts.domains().end()));
  EXPECT_EQ(functions.size(), 8U);
  EXPECT_GT(narrow, 350);
  EXPECT_LT(narrow, 450);
}

TEST(ServicePrompts, AFileOfOtherContentIsAnError) {
  const testing::Scratch scratch;
  const auto refused = [&](const std::function<void(Json&)>& change) {
    Json prompts = read_json(kFile);
    change(prompts);
    testing::put(scratch / "prompts.json", prompts.dump());
    EXPECT_THROW(ServicePrompts(scratch / "prompts.json"), Error) << prompts.dump().substr(0, 200);
  };
  EXPECT_NO_THROW(ServicePrompts{kFile});
  refused([](Json& p) { p = {{"services", {{{"name", "x"}}}}, {"words", Json::object()}}; });
  refused([](Json& p) { p["words"]["city"] = Json::array(); });
  refused([](Json& p) { p["services"][1]["requests"] = Json::array(); });
  refused([](Json& p) { p["services"][0]["requests"][0].erase("call"); });
  refused([](Json& p) { p["services"][1]["requests"][0]["ask"] = {1}; });
  refused([](Json& p) { p["services"].erase(0); });
}

}  // namespace
}  // namespace specdec::cli
