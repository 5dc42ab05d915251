#include "cli/stop_deadline.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "base/progress.h"
#include "tests/base/scratch.h"

namespace specdec::cli {
namespace {

using namespace specdec::testing;

// Each test runs in a child process, because a stop request cannot be withdrawn. The tests send SIGALRM themselves
// instead of waiting for the timer.
TEST(StopDeadline, ASignalRequestsTheStopAndStartsTheTime) {
  EXPECT_EQ(in_child(nullptr, "",
                     [] {
                       if (stop_requested()) ::_exit(40);
                       stop_by_signal(SIGTERM, 0);
                       if (!stop_requested()) ::_exit(41);
                       const unsigned left = ::alarm(0);
                       ::_exit(left > 0 && left <= kStopSeconds ? 0 : 42);
                     }),
            0);
}

// When a process group is stopped, a stage of the loop gets the signal twice: directly, and from the loop.
TEST(StopDeadline, TheSameRequestTwiceIsOneAndALaterOneEndsAtOnce) {
  const auto ended = [](int number, double second) {
    return in_child(nullptr, "", [&] {
      stop_by_signal(number, 100);
      stop_by_signal(number, second);
      ::_exit(40);
    });
  };
  EXPECT_EQ(ended(SIGTERM, 100.2), 40) << "goes on to save its state";
  EXPECT_EQ(ended(SIGINT, 100.2), 40);
  EXPECT_EQ(ended(SIGTERM, 101.5), 128 + SIGTERM);
  EXPECT_EQ(ended(SIGINT, 101.5), 128 + SIGINT) << "a second Ctrl-C";
  EXPECT_EQ(in_child(nullptr, "",
                     [] {
                       stop_by_signal(SIGINT, 100);   // Ctrl-C reaches every process of the group
                       stop_by_signal(SIGTERM, 105);  // the busy parent passes the stop on later
                       ::_exit(40);
                     }),
            40);
}

TEST(StopDeadline, WorkThatNeverLooksIsEnded) {
  const auto ended = [](int number, bool resumes) {
    return in_child(nullptr, "", [&] {
      if (resumes) set_stop_resumes("the same command");
      stop_by_signal(number, 0);
      ::raise(SIGALRM);
      ::_exit(40);
    });
  };
  EXPECT_EQ(ended(SIGTERM, false), 143);
  EXPECT_EQ(ended(SIGINT, false), 130);
  EXPECT_EQ(ended(SIGTERM, true), 75) << "the same command goes on";
}

TEST(StopDeadline, TheReportIsMadeForTheSignal) {
  const testing::Scratch dir;
  const auto printed = [&](int number, bool resumes) {
    in_child(nullptr, "", [&] {
      const int file = ::open((dir / "out").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ::dup2(file, STDOUT_FILENO);
      if (resumes) set_stop_resumes("the same command with --resume");
      set_stop_report([](int code, const std::string& message) {
        return StopReport{"", std::to_string(code) + " " + message + "\n"};
      });
      stop_by_signal(number, 0);
      ::raise(SIGALRM);
      ::_exit(40);
    });
    return get(dir / "out");
  };
  EXPECT_EQ(printed(SIGINT, false), "130 stopped by a signal, in the middle of its work\n");
  EXPECT_EQ(printed(SIGTERM, false), "143 stopped by a signal, in the middle of its work\n");
  EXPECT_EQ(printed(SIGTERM, true),
            "75 stopped by a signal, in the middle of its work: the same command with --resume goes on from what was "
            "saved\n");
}

TEST(StopDeadline, ADrainHasItsOwnTime) {
  EXPECT_EQ(in_child(nullptr, "",
                     [] {
                       set_stop_seconds(0);
                       stop_by_signal(SIGTERM, 0);
                       if (::alarm(0) != 0) ::_exit(40);
                       set_stop_seconds(100);  // also applies to a request that was already made
                       if (::alarm(0) < 90) ::_exit(41);
                       set_stop_seconds(0);
                       ::_exit(::alarm(0) == 0 ? 0 : 42);
                     }),
            0);
}

}  // namespace
}  // namespace specdec::cli
