#include "data/regenerate/openai_client.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/net/toy_server.h"

namespace specdec::data {
namespace {

using net::ToyReply;
using net::ToyRequest;
using net::ToyServer;

ClientOptions client_options(const std::string& url, std::vector<double>* slept = nullptr) {
  ClientOptions o;
  o.url = url;
  o.backoff.max_attempts = 4;
  o.backoff.sleep = [slept](double s) {
    if (slept) slept->push_back(s);
  };
  return o;
}

TEST(OpenAiClient, RetriesWhatIsTemporaryAndHonoursRetryAfter) {
  std::atomic<int> calls{0};
  ToyServer server([&](const ToyRequest& r) -> ToyReply {
    EXPECT_EQ(r.path, "/v1/models");
    switch (++calls) {
      case 1:
        return {0, "", "", true};
      case 2:
        return {429, "", "Retry-After: 7\r\n"};
      case 3:
        return {503, "", "Retry-After: 100000\r\n"};
      case 4:
        return {500, "", ""};
      default:
        return {200, R"({"data":[{"id":"toy"}]})", ""};
    }
  });
  std::vector<double> slept;
  ClientOptions options = client_options(server.url(), &slept);
  options.backoff.max_attempts = 5;
  OpenAiClient client(options);
  EXPECT_EQ(client.first_model(), "toy");
  EXPECT_EQ(slept, (std::vector<double>{0.5, 7, 300, 4}));  // Retry-After is capped at 300 s; the delay keeps doubling
}

TEST(OpenAiClient, GivesUpAfterTheLastAttempt) {
  std::atomic<int> calls{0};
  ToyServer server([&](const ToyRequest&) -> ToyReply {
    ++calls;
    return {503, R"({"error":{"message":"loading\u0007"}})", ""};
  });
  OpenAiClient client(client_options(server.url()));
  const HttpReply reply = client.get("/x");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(describe(reply), "HTTP 503: loading?");
  OpenAiClient nobody(client_options("http://127.0.0.1:1"));
  EXPECT_THROW(nobody.get("/x"), Error);
  EXPECT_EQ(nobody.probe("/x").status, 0);
}

TEST(OpenAiClient, SendsTheKeyAndFollowsNoRedirect) {
  std::atomic<int> calls{0};
  ToyServer server([&](const ToyRequest& r) -> ToyReply {
    ++calls;
    EXPECT_NE(r.head.find("Authorization: Bearer sekret"), std::string::npos);
    EXPECT_EQ(r.head.find("Expect:"), std::string::npos);
    return {307, "", "Location: /elsewhere\r\n"};
  });
  ClientOptions o = client_options(server.url() + "/api/v2/");
  o.api_key = "sekret";
  OpenAiClient client(o);
  EXPECT_EQ(client.base_url(), server.url() + "/api/v2");
  EXPECT_EQ(client.post("/completions", {{"prompt", std::string(2'000'000, 'x')}}).status, 307);
  EXPECT_EQ(calls, 1);
}

TEST(OpenAiClient, BoundsTheReplyAndTheUrl) {
  ToyServer server([](const ToyRequest&) -> ToyReply { return {200, std::string(5000, 'x'), ""}; });
  ClientOptions o = client_options(server.url());
  o.max_response_bytes = 4999;
  EXPECT_THROW(OpenAiClient(o).get("/x"), Error);
  o.max_response_bytes = 5000;
  EXPECT_EQ(OpenAiClient(o).get("/x").body.size(), 5000u);
  for (const char* url : {"ftp://host", "file:///etc/passwd", "host:80", "http://", "http://user:pw@host",
                          "http://host/v1?x=1", "http://ho st"})
    EXPECT_THROW(OpenAiClient(client_options(url)), Error) << url;
}

TEST(OpenAiClient, NotAModelList) {
  std::string body;
  ToyServer server([&](const ToyRequest&) -> ToyReply { return {200, body, ""}; });
  OpenAiClient client(client_options(server.url()));
  for (const char* bad : {"", "[]", "{\"data\":[]}", "{\"data\":[7]}", "{\"data\":[{\"id\":7}]}"}) {
    body = bad;
    EXPECT_THROW(client.first_model(), Error) << bad;
  }
}

TEST(OpenAiClient, SaysWhyAndWhenItTriesAgain) {
  ToyServer server([&](const ToyRequest&) -> ToyReply { return {503, "", "Retry-After: 7\r\n"}; });
  std::vector<std::string> said;
  ClientOptions options = client_options(server.url());
  options.backoff.max_attempts = 3;
  options.backoff.on_retry = [&](const net::Retry& retry) { said.push_back(readable(retry)); };
  EXPECT_THROW(OpenAiClient(options).first_model(), Error);
  EXPECT_EQ(said, (std::vector<std::string>{"HTTP 503 (attempt 1 of 3), next attempt in 7 s",
                                            "HTTP 503 (attempt 2 of 3), next attempt in 7 s"}))
      << "the last attempt is the error";
}

}  // namespace
}  // namespace specdec::data
