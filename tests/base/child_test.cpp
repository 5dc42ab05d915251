#include "base/child.h"

#include <fcntl.h>

#include "base/progress.h"
#include "tests/base/scratch.h"

namespace specdec {
namespace {

using testing::Scratch;

ChildStart shell(const std::string& command) { return {.argv = {"/bin/sh", "-c", command}}; }

TEST(Child, ItsEndIsACode) {
  EXPECT_EQ(Child(shell("exit 7")).wait(), 7);
  EXPECT_EQ(Child(shell("kill -9 $$")).wait(), 128 + SIGKILL);
  EXPECT_EQ(Child(ChildStart{.argv = {"/no/such/program"}}).wait(), 127);
  Child asleep(shell("exec sleep 60"));
  EXPECT_FALSE(asleep.code().has_value());
  asleep.signal(SIGTERM);
  EXPECT_EQ(asleep.wait(), 128 + SIGTERM);
  EXPECT_EQ(asleep.code(), 128 + SIGTERM) << "known for good";
}

TEST(Child, GetsEnvironmentAndDescriptors) {
  const Scratch dir;
  const int out = ::open((dir / "out").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600),
            kept = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const std::string seen = "test -e /proc/self/fd/" + std::to_string(kept) + " && echo open || echo closed";
  ChildStart start = shell("echo $SPECDEC_CHILD; " + seen + "; echo err >&2");
  start.environment = {{"SPECDEC_CHILD", "a b=c"}};
  start.out = start.err = out;
  EXPECT_EQ(Child(start).wait(), 0);
  start.keep = kept;
  EXPECT_EQ(Child(start).wait(), 0);
  EXPECT_EQ(testing::get(dir / "out"), "a b=c\nclosed\nerr\na b=c\nopen\nerr\n");
  ::close(out);
  ::close(kept);
}

// With outlives_us, the stop request must reach the whole process group, because the shell here traps SIGTERM and does
// not pass it on to its child.
TEST(Child, AStopRequestIsHandedOn) {
  for (const bool outlives : {false, true}) {
    const int code = testing::in_child(nullptr, "", [&] {
      ChildStart start = shell(outlives ? "trap : TERM; sleep 5 & wait; wait $!" : "exec sleep 5");
      start.outlives_us = outlives;
      Child child(start);
      if (child.code()) ::_exit(1);
      ::usleep(200000);  // gives the shell time to set the trap
      request_stop();
      ::_exit(child.wait());
    });
    EXPECT_EQ(code, 128 + SIGTERM);
  }
}

TEST(Child, EndsWithUsUnlessItIsToOutliveUs) {
  const Scratch dir;
  const auto start = [&](const std::string& name, bool outlives) {
    ChildStart s = shell("echo > begun." + name + "; sleep 0.3; echo > ended." + name);
    s.argv[2].insert(0, "cd '" + dir.root().string() + "'; ");
    s.outlives_us = outlives;
    const Child child(s);
    while (!fs::exists(dir / ("begun." + name))) ::usleep(1000);
  };
  EXPECT_EQ(testing::in_child(nullptr, "", [&] { start("with", false), start("after", true); }), 0);
  for (int i = 0; i < 10000 && !fs::exists(dir / "ended.after"); ++i) ::usleep(1000);
  EXPECT_TRUE(fs::exists(dir / "ended.after"));
  EXPECT_FALSE(fs::exists(dir / "ended.with")) << "begun before, and as long";
}

}  // namespace
}  // namespace specdec
