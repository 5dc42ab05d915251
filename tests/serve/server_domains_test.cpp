// Tests of the domains under which a server counts requests: how many there may be, and which tenants see them.
#include <gtest/gtest.h>

#include "tests/serve/running_server.h"

namespace specdec::deploy {
namespace {

using testing::put;

TEST(ServerDomains, OneTenantLeavesDomainsToTheOthersAndSeesOnlyItsOwn) {
  const Scratch dir;
  put(dir / "keys", "key-of-anna-1 anna\nkey-of-otto-1 otto\nkey-of-ops-11 operator\n");
  Config setup;
  setup.options.api_key_file = dir / "keys";
  setup.limits.domains = 4;
  Running s(setup);
  s.start();
  const auto complete = [&](const std::string& key, const std::string& domain) {
    const Response r = s.ask(
        post("/v1/completions", R"({"prompt":"say:some text","max_tokens":40,"metadata":{"domain":")" + domain + "\"}}",
             "Authorization: Bearer " + key + "\r\n"));
    EXPECT_EQ(r.status, 200) << r.body;
  };
  const auto domains = [&](const std::string& key) {
    const std::string text = s.ask(get("/metrics", "Authorization: Bearer " + key + "\r\n")).body;
    std::string found;
    for (size_t at = text.find("domain_reached_tokens_total{"); at != std::string::npos;
         at = text.find("domain_reached_tokens_total{", at + 1))
      found += text.substr(at + 28, text.find('}', at) - at - 28) + " ";
    EXPECT_EQ(text.find("tenant"), std::string::npos);
    return found;
  };
  for (int i = 0; i < 5; ++i) complete("key-of-anna-1", "a" + std::to_string(i));
  for (const char* domain : {"o0", "o1", "a0"}) complete("key-of-otto-1", domain);
  EXPECT_EQ(domains("key-of-anna-1"), "domain=\"a0\" domain=\"a1\" domain=\"other\" ");
  EXPECT_EQ(domains("key-of-otto-1"), "domain=\"a0\" domain=\"o0\" domain=\"o1\" ");
  EXPECT_EQ(domains("key-of-ops-11"), "domain=\"a0\" domain=\"a1\" domain=\"o0\" domain=\"o1\" domain=\"other\" ");
}

TEST(ServerDomains, ATenantThatIsLeftAloneSeesNothingOfTheRemovedOnes) {
  const Scratch dir;
  put(dir / "keys", "key-of-anna-1 anna\nkey-of-otto-1 otto\n");
  Config setup;
  setup.options.api_key_file = dir / "keys";
  Running s(setup);
  s.start();
  const std::string otto = "Authorization: Bearer key-of-otto-1\r\n", anna = "Authorization: Bearer key-of-anna-1\r\n";
  const std::string body = R"({"prompt":"say:some text","metadata":{"domain":"payroll"}})";
  ASSERT_EQ(s.ask(post("/v1/completions", body, otto)).status, 200);
  put(dir / "keys", "key-of-anna-1 anna\n");
  s.reload.store(true);
  wait_until([&] { return s.ask(get("/v1/models", otto)).status == 401; });
  const Response metrics = s.ask(get("/metrics", anna));
  EXPECT_EQ(metrics.status, 200);
  EXPECT_EQ(metrics.body.find("payroll"), std::string::npos);
}

TEST(ServerDomains, AreBounded) {
  const Scratch dir;
  Config setup;
  setup.options.acceptance_log = dir / "a.jsonl";
  setup.limits.domains = 3;
  {
    Running s(setup);
    s.start();
    for (int i = 0; i < 6; ++i) s.complete("say:x", "\"metadata\":{\"domain\":\"d" + std::to_string(i) + "\"}");
    s.complete("say:x", R"("metadata":{"domain":"d1"})");
    s.complete("say:x");
  }
  const std::string log = testing::get(dir / "a.jsonl");
  const auto count = [&](const std::string& text) {
    size_t n = 0;
    for (size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("\"s\":\"d1\""), 2u);
  EXPECT_EQ(count("\"s\":\"other\""), 3u);
  EXPECT_EQ(count("\"s\":\"\""), 1u);
}

}  // namespace
}  // namespace specdec::deploy
