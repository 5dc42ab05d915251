#include "base/secret.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace specdec {
namespace {

TEST(Secret, PrintsItselfHidden) {
  const Secret key("sk-live-1");
  std::ostringstream out;
  out << key << "|" << Secret();
  EXPECT_EQ(out.str(), "***|");
  EXPECT_EQ(nlohmann::json({{"key", key}}).dump(), R"({"key":"***"})");
  EXPECT_EQ(key.reveal(), "sk-live-1");
}

TEST(SecretUrl, ShowsWhereItLeadsAndNoSecret) {
  const auto shown = [](const std::string& url) { return SecretUrl(url).shown(); };
  EXPECT_EQ(shown("http://host:9090/metrics"), "http://host:9090/metrics");
  EXPECT_FALSE(SecretUrl("http://host:9090/metrics").has_secret());
  EXPECT_EQ(shown("http://me:hunter2@host:9090/metrics?token=s3cret"), "http://***@host:9090/metrics?***");
  EXPECT_TRUE(SecretUrl("http://me:hunter2@host").has_secret());
  EXPECT_EQ(shown("prometheus+https://me:hunter2@host?match={job=\"vllm\"}"),
            "prometheus+https://***@host?match={job=\"vllm\"}");
  EXPECT_EQ(shown("prometheus+http://host?match={job=\"x\"}&token=s3cret"), "prometheus+http://host?***");
  EXPECT_EQ(shown("http://[::1]:8000/metrics#s3cret"), "http://[::1]:8000/metrics#***");
  EXPECT_EQ(shown("recorded/acceptance"), "recorded/acceptance");
  EXPECT_EQ(SecretUrl("https://hooks.slack.com/services/T0/B0/xyz", SecretUrl::Shows::kHost).shown(),
            "https://hooks.slack.com/***");
  // These passwords are not percent-encoded as they should be, so everything that is not clearly a host is hidden.
  for (const char* url : {"http://me:hunt@er2@host/x", "http://me:hunter2/x@host/x", "http://me:hunter2?x@host/x",
                          "http://me:hunter2#x@host", "http://me:hunter2", "http://me:80/hunter2@host"})
    EXPECT_EQ(shown(url).find("hunt"), std::string::npos) << shown(url);
  std::ostringstream out;
  out << SecretUrl("http://me:hunter2@host");
  EXPECT_EQ(out.str(), "http://***@host");
  EXPECT_EQ(nlohmann::json(SecretUrl("http://h/?s3cret")).dump(), "\"http://h/?***\"");
}

}  // namespace
}  // namespace specdec
