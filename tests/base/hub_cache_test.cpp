#include "base/hub_cache.h"

#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::expect_error;
using testing::put;

const std::string kOne = "1111111aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", kTwo = "1111111bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
                  kThree = "2222222ccccccccccccccccccccccccccccccccc";

class HubCache : public ::testing::Test {
 protected:
  HubCache() { ::setenv("HF_HUB_CACHE", dir.root().c_str(), 1); }
  ~HubCache() override { ::unsetenv("HF_HUB_CACHE"); }
  void snapshot(const std::string& commit) { put(repository / "snapshots" / commit / "config.json", "{}"); }
  std::string commit_of(const std::string& text) {
    const auto found = find_snapshot(*parse_hub_name(text));
    return found ? found->commit : "";
  }
  testing::Scratch dir;
  fs::path repository = dir / "models--org--name";
};

TEST_F(HubCache, Names) {
  const HubName hub = *parse_hub_name("hf://org/na-me_1.5@refs/pr/7");
  EXPECT_EQ(hub.repository() + " " + hub.revision + " " + hub.text(),
            "org/na-me_1.5 refs/pr/7 org/na-me_1.5@refs/pr/7");
  EXPECT_EQ(parse_hub_name("org/name")->text(), "org/name");
  for (const char* none : {"name", "a/b/c", "/b", "a/", "a/b@", "a/b@../x", "../b", "a/..", "a/b c", "a/.b", "./b"})
    EXPECT_FALSE(parse_hub_name(none)) << none;
}

TEST_F(HubCache, Places) {
  EXPECT_EQ(hub_repository(*parse_hub_name("org/name")), repository);
  ::unsetenv("HF_HUB_CACHE");
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(hub_cache(), fs::path("/x/huggingface/hub"));
  ::setenv("HF_HOME", "/h", 1);
  EXPECT_EQ(hub_cache(), fs::path("/h/hub"));
  ::setenv("HUGGINGFACE_HUB_CACHE", "/old", 1);
  EXPECT_EQ(hub_cache(), fs::path("/old"));
  const std::string home = std::getenv("HOME") ? std::getenv("HOME") : "";
  ::setenv("HOME", "/me", 1);
  ::setenv("HUGGINGFACE_HUB_CACHE", "~/models", 1);
  EXPECT_EQ(hub_cache(), fs::path("/me/models"));
  for (const char* name : {"XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE"}) ::unsetenv(name);
  EXPECT_EQ(hub_cache(), fs::path("/me/.cache/huggingface/hub"));
  ::unsetenv("HOME");
  expect_error(ErrorKind::kConfig, {"HOME", "HF_HOME"}, [] { hub_cache(); });
  if (!home.empty()) ::setenv("HOME", home.c_str(), 1);
}

TEST_F(HubCache, RefsCommitsAndTheirFirstDigits) {
  EXPECT_EQ(commit_of("org/name"), "");
  for (const std::string& commit : {kOne, kTwo, kThree}) snapshot(commit);
  put(repository / "refs" / "main", kTwo);
  put(repository / "refs" / "refs" / "pr" / "1", kThree + "\n");
  EXPECT_EQ(commit_of("org/name"), kTwo);
  EXPECT_EQ(commit_of("org/name@refs/pr/1"), kThree);
  EXPECT_EQ(commit_of("org/name@" + kOne), kOne);
  EXPECT_EQ(commit_of("org/name@2222222"), kThree);
  EXPECT_EQ(commit_of("org/name@222222"), "");   // fewer than 7 digits
  EXPECT_EQ(commit_of("org/name@1111111"), "");  // two commits begin with these digits
  EXPECT_EQ(commit_of("org/name@1111111b"), kTwo);
  put(repository / "refs" / "gone", "3333333ddddddddddddddddddddddddddddddddd");
  EXPECT_EQ(commit_of("org/name@gone"), "");
  expect_error(ErrorKind::kModel, {"org/name@gone", "specdec fetch org/name@gone", repository.string()},
               [] { cached_snapshot(*parse_hub_name("org/name@gone")); });
  put(repository / "refs" / "bad", "../../../etc");
  expect_error(ErrorKind::kModel, {"expected a commit"}, [&] { commit_of("org/name@bad"); });
}

TEST_F(HubCache, WhatAModelIsCalled) {
  EXPECT_EQ(model_name(repository / "snapshots" / kOne), "name");
  EXPECT_EQ(model_name((repository / "snapshots" / kOne).string() + "/"), "name");
  EXPECT_EQ(model_name("/models/llama/"), "llama");
  EXPECT_EQ(model_name("/x/snapshots/" + kOne), kOne);
}

// A directory named "target" says nothing about the model, so the model gets the name in its config.json, unless that
// name says nothing either.
TEST_F(HubCache, APlaceholderIsNoName) {
  const fs::path target = repository / "target";
  const auto named = [&](const std::string& config) {
    put(target / "config.json", config);
    return model_name(target);
  };
  EXPECT_EQ(named(R"({"_name_or_path": "Qwen/Qwen3-8B"})"), "Qwen3-8B");
  EXPECT_EQ(named(R"({"_name_or_path": "/home/me/chat-v2/"})"), "chat-v2");
  EXPECT_EQ(model_names("/gone/model", target), (std::vector<std::string>{"chat-v2", "model"}))
      << "of a package, whose files are elsewhere";
  EXPECT_EQ(model_names("/gone/llama", target), std::vector<std::string>{"llama"});
  for (const char* config :
       {"{}", "[]", "{", R"({"_name_or_path": 7})", R"({"_name_or_path": ""})", R"({"_name_or_path": "./"})",
        R"({"_name_or_path": "../checkpoint-500"})", R"({"_name_or_path": "a b; rm"})"})
    EXPECT_EQ(named(config), "target") << config;
  EXPECT_EQ(named(R"({"_name_or_path": ")" + std::string(200, 'a') + "\"}"), "target");
  for (const char* name : {"target", "Model", "checkpoint-500", "final"})
    EXPECT_TRUE(is_placeholder_name(name)) << name;
  for (const char* name : {"llama", "target-v2", "500", ""}) EXPECT_FALSE(is_placeholder_name(name)) << name;
}

}  // namespace
}  // namespace specdec
