#include "engine/parallel/ranks.h"

#include <gtest/gtest.h>

#include <csignal>
#include <mutex>

#include "tests/base/scratch.h"
#include "tests/faults/points.h"
#include "tests/parallel/rank_threads.h"

namespace specdec::parallel {
namespace {

using namespace specdec::testing;

const std::vector<std::string> kNoErrors(2, "");

TEST(Ranks, AloneDoesNothing) {
  const Ranks& ranks = Ranks::alone();
  std::vector<double> values = {1, 2};
  ranks.sum(values);
  EXPECT_EQ(values, (std::vector<double>{1, 2}));
  EXPECT_EQ(ranks.broadcast("text"), "text");
  EXPECT_TRUE(ranks.any(true));
  EXPECT_FALSE(ranks.any(false));
  EXPECT_EQ(ranks.device("auto"), "auto");
  EXPECT_EQ(ranks.together([] { return 3; }), 3);
}

TEST(Ranks, WritingToARankThatHasLeftEndsNoProcess) {
  EXPECT_EXIT(
      {
        std::signal(SIGPIPE, SIG_DFL);
        const auto errors = as_ranks(2, [](const Ranks&) { std::raise(SIGPIPE); });
        std::_Exit(errors == kNoErrors ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(Ranks, SumsAndBroadcasts) {
  const auto errors = as_ranks(3, [](const Ranks& ranks) {
    const double r = ranks.rank();
    std::vector<double> values = {r, 10 * r, 0.1};
    ranks.sum(values);
    EXPECT_EQ(values[0], 3);
    EXPECT_EQ(values[1], 30);
    EXPECT_NEAR(values[2], 0.3, 1e-15);
    EXPECT_TRUE(ranks.any(ranks.rank() == 2));
    EXPECT_FALSE(ranks.any(false));
    EXPECT_EQ(ranks.broadcast(ranks.is_first() ? std::string("a\0b", 3) : "other"), std::string("a\0b", 3));
    EXPECT_EQ(ranks.broadcast(ranks.is_first() ? "" : "other"), "");
    const at::Tensor halves = at::full({2, 3}, r + 0.5, at::kBFloat16), scalar = at::full({}, r),
                     turned = at::full({4, 2}, r).t();
    ranks.broadcast({halves, scalar, turned, at::empty({0})});
    EXPECT_TRUE(at::equal(halves, at::full({2, 3}, 0.5, at::kBFloat16)));
    EXPECT_EQ(scalar.item<double>(), 0);
    EXPECT_TRUE(at::equal(turned, at::zeros({2, 4})));
    const at::Tensor many = at::full({(1 << 24) + 1}, r), few = at::full({3}, r), own = at::full({4, 2}, r).t(),
                     ids = at::full({2}, ranks.rank(), at::kLong);
    ranks.broadcast({few, own, ids, many}, 2);
    EXPECT_TRUE(at::equal(few, at::full({3}, 2.0)));
    EXPECT_TRUE(at::equal(own, at::full({2, 4}, 2.0)));
    EXPECT_TRUE(at::equal(ids, at::full({2}, 2, at::kLong)));
    EXPECT_EQ(many.min().item<double>(), 2);
    EXPECT_EQ(many.max().item<double>(), 2);
  });
  EXPECT_EQ(errors, std::vector<std::string>(3, ""));
}

TEST(Ranks, TeamsAreNeighboursThatWaitForEachOtherAlone) {
  const auto errors = as_ranks(4, [](const Ranks& ranks) {
    const Ranks& team = ranks.team(2);
    EXPECT_EQ(&ranks.team(2), &team);
    EXPECT_EQ(&ranks.team(4), &ranks);
    EXPECT_EQ(ranks.team(1).count(), 1);
    EXPECT_EQ(team.count(), 2);
    EXPECT_EQ(team.rank(), ranks.rank() % 2);
    for (int i = 0; i < (ranks.rank() < 2 ? 1 : 3); ++i) {  // one team has more work than the other
      std::vector<double> values = {static_cast<double>(ranks.rank())};
      team.sum(values);
      EXPECT_EQ(values[0], ranks.rank() < 2 ? 1 : 5);
      const at::Tensor own = at::full({2}, ranks.rank(), at::kLong);
      EXPECT_EQ(team.gather(own)[1][0].item<int64_t>(), ranks.rank() < 2 ? 1 : 3);
      team.broadcast({own}, 1);
      EXPECT_EQ(own[1].item<int64_t>(), ranks.rank() < 2 ? 1 : 3);
    }
    std::vector<double> values = {1};
    ranks.sum(values);
    EXPECT_EQ(values[0], 4);
    expect_error(ErrorKind::kUsage, {"4 processes", "teams of 3"}, [&] { ranks.team(3); });
  });
  EXPECT_EQ(errors, std::vector<std::string>(4, ""));
}

// If a rank fails, both its own team and the other team end with its error.
TEST(Ranks, ARankThatFailsEndsItsTeam) {
  const auto errors = as_ranks(4, [](const Ranks& ranks) {
    const Ranks& team = ranks.team(2);
    if (ranks.rank() == 1) throw Error(ErrorKind::kDevice, "out of memory");
    team.any(false);
    ranks.any(false);
  });
  for (const std::string& e : errors) EXPECT_NE(e.find("out of memory"), std::string::npos) << e;
}

TEST(Ranks, SumsGradientsThatSomeRanksDoNotHave) {
  const auto errors = as_ranks(2, [](const Ranks& ranks) {
    const bool first = ranks.is_first();
    const std::vector<at::Tensor> shapes = {at::zeros({3}), at::zeros({2, 2}), at::zeros({5}),
                                            at::zeros({4}, at::kBFloat16), at::zeros({(1 << 24) + 1})};
    std::vector<at::Tensor> gradients = {at::full({3}, first ? 1.0 : 2.0), first ? at::ones({2, 2}) : at::Tensor(),
                                         at::Tensor(), at::full({4}, 0.5, at::kBFloat16),
                                         at::full({(1 << 24) + 1}, 2.0)};
    ranks.sum(gradients, shapes);
    EXPECT_TRUE(at::equal(gradients[0], at::full({3}, 3.0)));
    EXPECT_TRUE(at::equal(gradients[1], at::ones({2, 2})));
    EXPECT_FALSE(gradients[2].defined()) << "AdamW skips it, as without other ranks";
    EXPECT_TRUE(at::equal(gradients[3], at::ones({4}, at::kBFloat16)));
    EXPECT_EQ(gradients[4].min().item<double>(), 4);
    EXPECT_EQ(gradients[4].max().item<double>(), 4);
  });
  EXPECT_EQ(errors, kNoErrors);
}

TEST(Ranks, AnErrorOfOneRankEndsTheOthersWithIt) {
  const auto errors = as_ranks(3, [](const Ranks& ranks) {
    if (ranks.rank() == 1) throw Error(ErrorKind::kData, "row 7 is malformed");
    ranks.any(false);
  });
  EXPECT_EQ(errors[1], "row 7 is malformed");
  for (const size_t other : {0, 2}) {
    EXPECT_EQ(errors[other].find("rank 1 ("), 0u) << errors[other];
    EXPECT_NE(errors[other].find("): row 7 is malformed"), std::string::npos) << errors[other];
  }
}

TEST(Ranks, TwoProcessesOfTheSameRankAndOtherNumbersOfRanksAreRefused) {
  const SystemClock clock;
  const int port = free_port();
  std::vector<std::string> errors(3);
  const auto start = [&](size_t at, int rank, int ranks) {
    return std::thread([&errors, &clock, port, at, rank, ranks] {
      try {
        const Ranks joined(launch_of(rank, ranks, port), {.join_seconds = 3}, clock);
      } catch (const Error& e) {
        errors[at] = e.what();
      }
    });
  };
  std::thread first = start(0, 0, 3), second = start(1, 1, 3), third = start(2, 1, 3);
  first.join(), second.join(), third.join();
  EXPECT_NE((errors[1] + errors[2]).find("two processes are rank 1"), std::string::npos) << errors[1] << errors[2];
  EXPECT_NE(errors[0].find("rank 2 of 3 did not start within 3 s"), std::string::npos) << errors[0];
  errors.assign(3, "");
  std::thread two = start(0, 0, 2), three = start(1, 1, 3);
  two.join(), three.join();
  EXPECT_NE((errors[0] + errors[1]).find("was told of"), std::string::npos) << errors[0] << errors[1];
}

TEST(Ranks, RankZeroThatIsNotThereIsNamed) {
  const SystemClock clock;
  expect_error(ErrorKind::kNetwork, {"rank 1 does not reach rank 0 at 127.0.0.1:", "within 1 s"},
               [&] { const Ranks ranks(launch_of(1, 2, free_port()), {.join_seconds = 1}, clock); });
}

TEST(Ranks, APortThatIsTakenIsNamed) {
  const SystemClock clock;
  const int port = free_port(), file = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(port));
  ASSERT_EQ(::bind(file, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(file, 1), 0);
  expect_error(ErrorKind::kConfig, {"rank 0 cannot listen at 127.0.0.1:" + std::to_string(port), "MASTER_PORT"},
               [&] { const Ranks ranks(launch_of(0, 2, port), {}, clock); });
  ::close(file);
}

TEST(Ranks, ARankSaysWhatItWaitsFor) {
  const SystemClock clock;
  std::vector<std::string> said;
  RankHooks hooks;
  hooks.on_wait = [&](const std::string& what) { said.push_back(what); };
  hooks.join_seconds = 1;
  hooks.wait_seconds = 0.3;
  EXPECT_THROW(const Ranks ranks(launch_of(1, 2, free_port()), hooks, clock), Error);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find("rank 1 waits for rank 0: nothing answers at 127.0.0.1:"), std::string::npos) << said[0];
  EXPECT_THROW(const Ranks ranks(launch_of(0, 2, free_port()), hooks, clock), Error);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_NE(said[1].find("rank 0 waits for rank 1 of 2"), std::string::npos) << said[1];
  // A server that accepts connections and never answers.
  const int port = free_port(), file = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  ASSERT_EQ(::bind(file, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(file, 16), 0);
  // Connects in a child process, because c10d would wait for an answer forever. The child must be ended by on_wait
  // (exit code 41) or, if on_wait is not set, by on_lost (42).
  for (const bool tells : {true, false}) {
    const int code = in_child(nullptr, "", [&] {
      if (tells) hooks.on_wait = [](const std::string& what) { ::_exit(what.find("is silent") != what.npos ? 41 : 1); };
      if (!tells) hooks.on_wait = {};
      hooks.on_lost = [](const Error& e) { ::_exit(e.kind() == ErrorKind::kNetwork ? 42 : 1); };
      const Ranks ranks(launch_of(1, 2, port), hooks, clock);
    });
    EXPECT_EQ(code, tells ? 41 : 42);
  }
  ::close(file);
}

}  // namespace
}  // namespace specdec::parallel
