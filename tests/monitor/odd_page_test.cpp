// Tests that a malformed line of a page affects only its own replica, and that a malformed series in the state is an
// error.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "monitor/read/scrape.h"
#include "tests/base/scratch.h"

namespace specdec::monitor {
namespace {

using testing::expect_error;

// Because of a malformed line, only the replica that the line's labels name is left out. The other replicas are judged.
TEST(Exposition, ABadLineSetsOnlyItsReplicaAside) {
  const std::string name = "vllm:spec_decode_num_drafts_total",
                    at = "vllm:spec_decode_num_accepted_tokens_per_pos_total", good = name + "{pod=\"a\"} 100\n";
  for (const std::string& bad : std::vector<std::string>{
           at + "{pod=\"evil\"} 1", at + "{pod=\"evil\",position=\"x\"} 1", name + "{pod=\"evil\"} abc",
           name + "{pod=\"evil\",pod=\"evil\"} 1", name + "{pod=\"evil\"} 1 2 3", name + "{pod=\"evil\xff\"} 1"}) {
    const std::string rest = name + "{pod=\"evil\"} 7\n";
    for (const std::string& page : {good + bad + "\n", bad + "\n" + good, bad + "\n" + rest + good}) {
      const Counters c = parse_exposition(page, "page");
      if (bad.find('\xff') == std::string::npos || page.find(rest) == std::string::npos)
        EXPECT_EQ(c.drafts, 100) << page;
      ASSERT_EQ(c.set_aside.count(), 1) << page;
      EXPECT_EQ(c.set_aside.front().find("{pod=\"evil"), 0u) << c.set_aside.front();
    }
  }
  expect_error(ErrorKind::kData, {"page: line 1"}, [&] { parse_exposition(at + "{pod=\"a\"} 1\n", "page"); });
}

// If one replica names no model (as on specdec's own page) and other replicas name models, those that name models are
// left out.
TEST(Exposition, OtherModelsBesideAnUnnamedOneAreSetAside) {
  const auto line = [](const std::string& labels, int value) {
    return "specdec:spec_decode_num_drafts_total{" + labels + "} " + std::to_string(value) + "\n";
  };
  const std::string own = line("pod=\"a\"", 100), b = line("model_name=\"b\",pod=\"evil\"", 1),
                    c = line("model_name=\"c\",pod=\"evil2\"", 1);
  const Counters counters = parse_exposition(own + b + c, "page");
  EXPECT_EQ(counters.drafts, 100);
  EXPECT_EQ(counters.set_aside.count(), 2);
  EXPECT_EQ(parse_exposition(own + b, "page").drafts, 101) << "one name is the page's model";
}

TEST(Exposition, MoreReplicasThanCanBeKeptAreSetAside) {
  const std::string name = "specdec:spec_decode_num_drafts_total{pod=\"";
  std::string page = name + "a\"} 100\n";
  for (int i = 0; i < 20001; ++i) page += name + "evil" + std::to_string(i) + "\"} 1\n";
  const Counters c = parse_exposition(page, "page");
  EXPECT_EQ(c.series.size(), 20000u);
  EXPECT_EQ(c.drafts, 100 + 19999);
  EXPECT_FALSE(c.set_aside.empty());
  EXPECT_LE(c.set_aside.lines().size(), 11u);
  std::string infos;
  for (int i = 0; i < 30000; ++i) infos += "specdec:info{target=\"y\",p=\"" + std::to_string(i) + "\"} 1\n";
  EXPECT_EQ(parse_exposition(infos, "page").pairs.size(), 20000u);
}

// Series stored in the state are recognised by the same functions as series on pages.
TEST(Counters, AnOddSeriesInTheStateIsAnError) {
  const std::string at = "specdec:spec_decode_num_accepted_tokens_per_pos_total";
  for (const std::string& series : std::vector<std::string>{
           at, at + "{position=\"x\"}", at + "{position=\"4000000000\"}", at + "{position=\"99999999999999999999\"}",
           at + "{position=\"65\"}", at + "{position=\"-1\"}", at + "{position=\"\"}", "{"})
    expect_error(ErrorKind::kData, {"s.db: "},
                 [&] { counters_from_json({{"engine", "specdec"}, {"time", 1}, {"series", {{series, 1}}}}, "s.db"); });
}

// A server without TLS answers the TLS handshake with plain HTTP. The error is kData, because a retry would not help.
TEST(Fetch, HttpsAtAPortWithoutTlsIsNoPassingFault) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::thread server([&] {
    char block[4096];
    const int fd = ::accept(listener, nullptr, nullptr);
    const std::string answer = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    if (::read(fd, block, sizeof block) > 0) EXPECT_GT(::write(fd, answer.data(), answer.size()), 0);
    ::close(fd);
  });
  const std::string place = "127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/metrics";
  expect_error(ErrorKind::kData, {"https://" + place, "http://" + place},
               [&] { fetch(SecretUrl("https://" + place)); });
  server.join();
  ::close(listener);
}

}  // namespace
}  // namespace specdec::monitor
