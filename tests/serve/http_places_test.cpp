// Tests of the HTTP transport alone: listeners, the limit of connections, and how connections end.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/serve/toy_http.h"

namespace specdec::deploy {
namespace {

using testing::expect_error;

TEST(Http, TooManyConnectionsAreToldSo) {
  Http h;
  std::vector<std::unique_ptr<Client>> all;
  for (size_t i = 0; i < small_limits().connections; ++i) {
    all.push_back(std::make_unique<Client>(h.port));
    all.back()->send(post("/stream", "x"));
    h.handler.stream(i);
  }
  Client surplus(h.port);
  const Response r = surplus.read();
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.headers.at("retry-after"), "1");
  all.pop_back();
  wait_until([&] { return h.server.connections() < small_limits().connections; });
  Client next(h.port);
  next.send(get("/hello"));
  EXPECT_EQ(next.read().status, 200);
}

TEST(Http, TheLongestIdleGivesWayToANewClient) {
  Http h;
  std::vector<std::unique_ptr<Client>> all;
  for (size_t i = 0; i < 3 * small_limits().connections; ++i) {
    all.push_back(std::make_unique<Client>(h.port));
    all.back()->send(get("/hello"));
    ASSERT_EQ(all.back()->read().status, 200) << i;
  }
  EXPECT_TRUE(all.front()->at_end());
  all.back()->send(get("/hello"));
  EXPECT_EQ(all.back()->read().status, 200) << "the latest still have their places";
  EXPECT_EQ(h.handler.count(503), 0);
}

// When the process has no file descriptor left for a new connection, an idle connection must be closed for it.
TEST(Http, WithoutDescriptorsAnIdleConnectionGivesWay) {
  ServeLimits limits = small_limits();
  limits.idle_seconds = 600;  // so that the idle connection does not end by itself
  Http h(limits);
  Client idle(h.port);
  idle.send(get("/hello"));
  ASSERT_EQ(idle.read().status, 200);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = std::min<rlim_t>(before.rlim_cur, 256);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::vector<int> fillers;
  for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) fillers.push_back(fd);
  ASSERT_FALSE(fillers.empty());
  ::close(fillers.back());
  fillers.pop_back();
  Client fresh(h.port);  // the client's own socket takes the last descriptor
  fresh.send(get("/hello"));
  EXPECT_EQ(fresh.read().status, 200);
  EXPECT_TRUE(idle.at_end());
  for (const int fd : fillers) ::close(fd);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(Http, WhoDoesNotTakeItsRepliesGivesWay) {
  Http h;
  std::vector<std::unique_ptr<Client>> all;
  for (size_t i = 0; i < small_limits().connections; ++i) {
    all.push_back(std::make_unique<Client>(h.port, INADDR_LOOPBACK + 1, 2048));
    all.back()->send_until_full(get("/hello"));
  }
  Client other(h.port);
  other.send(get("/hello"));
  EXPECT_EQ(other.read().status, 200);
}

// The server asks a connection to close in favour of a new one just when the connection's next request arrives. The
// request must be answered first; then the connection closes.
TEST(Http, WhoAnswersWhenAskedToGiveWayLeavesAfterwards) {
  Http h;
  std::vector<std::unique_ptr<Client>> busy;
  for (size_t i = 0; i < small_limits().connections; ++i) {
    busy.push_back(std::make_unique<Client>(h.port));
    busy.back()->send(get("/hello"));
    ASSERT_EQ(busy.back()->read().status, 200);
  }
  for (int i = 0; i < 200; ++i) {
    for (const auto& c : busy) c->send(get("/hello"));
    Client newcomer(h.port);
    newcomer.send(get("/hello"));
    newcomer.read();
    for (auto& c : busy)
      if (c->read().status != 200) c = std::make_unique<Client>(h.port);
  }
  wait_until([&] { return h.server.connections() <= small_limits().connections; });
}

TEST(Http, TheAdminSocketHasPlacesOfItsOwn) {
  const Scratch dir;
  ToyHandler handler, admin;
  HttpServer server(small_limits());
  const int port = server.listen("127.0.0.1", 0, handler);
  server.listen_unix(dir / "admin.sock", admin);
  server.start();
  std::vector<std::unique_ptr<Client>> all;
  for (size_t i = 0; i < small_limits().connections; ++i) {
    all.push_back(std::make_unique<Client>(port));
    all.back()->send(post("/stream", "x"));
    handler.stream(i);
  }
  EXPECT_EQ(Client(port).read().status, 503);
  Client c((dir / "admin.sock").string());
  c.send(get("/hello"));
  EXPECT_EQ(c.read().status, 200);
  for (size_t i = 0; i < 3 * small_limits().admin_connections; ++i) {
    all.push_back(std::make_unique<Client>((dir / "admin.sock").string()));
    all.back()->send(get("/hello"));
    EXPECT_EQ(all.back()->read().status, 200) << "its own idle ones give way, too";
  }
}

TEST(Http, StopAcceptingClosesTheIdleAndLetsTheOthersFinish) {
  Http h;
  Client idle(h.port), busy(h.port);
  idle.send(get("/hello"));
  EXPECT_EQ(idle.read().status, 200);
  busy.send(post("/stream", "x"));
  const auto stream = h.handler.stream(0);
  h.server.stop_accepting();
  EXPECT_TRUE(idle.at_end());
  stream->push("data: one\n\n", true);
  EXPECT_EQ(busy.read().body, "data: one\n\n");
  EXPECT_TRUE(busy.at_end());
}

TEST(Http, LargeBodiesLeaveAWorkerToSmallOnes) {
  ServeLimits limits = small_limits();
  limits.small_body_bytes = 100;
  Http h(limits);
  std::vector<std::unique_ptr<Client>> large;
  for (int i = 0; i < 4; ++i) {
    large.push_back(std::make_unique<Client>(h.port));
    large.back()->send(post("/echo?held", std::string(500, 'x')));
  }
  wait_until([&] { return h.handler.held() == 1; });
  for (int i = 0; i < 3; ++i) {
    Client small(h.port);
    small.send(post("/echo", "small"));
    EXPECT_EQ(small.read().body, "small");
  }
  EXPECT_EQ(h.handler.held(), 1) << "one at a time";
  h.handler.release();
  for (const auto& c : large) EXPECT_EQ(c->read().body.size(), 500u);
}

TEST(Http, StopEndsWhatRuns) {
  auto h = std::make_unique<Http>();
  Client busy(h->port);
  busy.send(post("/stream", "x"));
  const auto stream = h->handler.stream(0);
  h->server.stop();
  EXPECT_EQ(h->server.connections(), 0u);
  EXPECT_EQ(busy.read().status, 0);
}

TEST(Http, StopEndsWhatIsAboutToRun) {  // a failure of this test shows as a hang
  Http h;
  Client busy(h.port);
  busy.send(post("/stream?slowly", "x"));
  h.handler.stream(0);
  h.server.stop();
  EXPECT_EQ(h.handler.abandoned, 1);
}

TEST(Http, APortInUseIsAnErrorThatNamesIt) {
  Http h;
  HttpServer other(small_limits());
  expect_error(ErrorKind::kIo, {"--port", std::to_string(h.port), "in use"},
               [&] { other.listen("127.0.0.1", h.port, h.handler); });
  expect_error(ErrorKind::kUsage, {"--host"}, [&] { other.listen("no such host.invalid", 0, h.handler); });
}

TEST(Http, AUnixSocketIsPrivateAndReplacesADeadOne) {
  const Scratch dir;
  const auto path = dir / "admin.sock";
  ToyHandler handler;
  {
    HttpServer server(small_limits());
    server.listen_unix(path, handler);
    server.start();
    EXPECT_EQ(fs::status(path).permissions() & fs::perms::mask, fs::perms::owner_read | fs::perms::owner_write);
    Client c(path.string());
    c.send(get("/hello"));
    EXPECT_EQ(c.read().status, 200);
    HttpServer second(small_limits());
    expect_error(ErrorKind::kIo, {"another server"}, [&] { second.listen_unix(path, handler); });
  }
  EXPECT_FALSE(fs::exists(path));
  const int dead = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.string().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(dead, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(dead);
  HttpServer server(small_limits());
  EXPECT_NO_THROW(server.listen_unix(path, handler));
  testing::put(dir / "file", "x");
  expect_error(ErrorKind::kUsage, {"no socket"}, [&] { server.listen_unix(dir / "file", handler); });
  expect_error(ErrorKind::kUsage, {"longer"}, [&] { server.listen_unix(dir / std::string(200, 'a'), handler); });
}

}  // namespace
}  // namespace specdec::deploy
