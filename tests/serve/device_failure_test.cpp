// Tests how a server ends when its device fails.
#include <gtest/gtest.h>

#include "tests/serve/running_server.h"

namespace specdec::deploy {
namespace {

TEST(Server, ABrokenDeviceEndsTheServer) {
  Running s;
  s.start();
  s.runner.throw_in_step(true);
  for (int i = 0; i < 40; ++i) {
    Client c(s.port);
    if (!c.connected() || !c.send(post("/v1/completions", R"({"prompt":"x"})"))) break;
    c.read();
  }
  s.main.join();
  ASSERT_TRUE(s.failure);
  EXPECT_EQ(s.failure->kind(), ErrorKind::kDevice);
}

TEST(Server, ALostDeviceEndsTheServerAtOnce) {
  Config setup;
  setup.max_context = 1 << 24;
  Running s(setup);
  s.start();
  Client running(s.port);
  running.send(post("/v1/completions", R"({"prompt":"loop","max_tokens":7000000})"));
  wait_until([&] { return s.runner.open() == 1; });
  s.runner.lose_device();
  EXPECT_EQ(running.read().status, 503) << "the client may try another server";
  wait_until([&] { return !Client(s.port).connected(); });  // ends without a stop signal
  s.finish();
  ASSERT_TRUE(s.lost) << "not only a step has failed";
  EXPECT_EQ(s.lost->what(), "an illegal memory access was encountered");
  EXPECT_EQ(s.runner.open(), 0u);
}

}  // namespace
}  // namespace specdec::deploy
