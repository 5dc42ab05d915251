#include "base/confined_child.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/progress.h"

namespace specdec {
namespace {

std::string read_all(ConfinedChild& child) {
  std::string text(64, '\0');
  text.resize(child.read(text));
  return text;
}

TEST(ConfinedChild, GivesWhatItWritesAndEnds) {
  ConfinedChild child({}, [](int pipe) { write_pipe(pipe, std::string_view("hello")); });
  EXPECT_EQ(read_all(child), "hello");
  EXPECT_EQ(child.death(), "");
}

TEST(ConfinedChild, DiesOfWhatItsLimitsForbid) {
  ConfinedChild hungry({.memory_bytes = 64u << 20}, [](int pipe) {
    std::vector<char> memory(size_t{1} << 30, 'x');
    write_pipe(pipe, std::span<const char>(memory).first(1));
  });
  EXPECT_EQ(read_all(hungry), "");  // std::bad_alloc ends the child
  ConfinedChild endless({.cpu_seconds = 1}, [](int) {
    for (volatile bool on = true; on;) {
    }
  });
  EXPECT_EQ(read_all(endless), "");
  EXPECT_TRUE(endless.death().starts_with(" by signal "));
  ConfinedChild thrown({}, [](int) { throw Error(ErrorKind::kData, "x"); });
  EXPECT_EQ(read_all(thrown), "");
}

TEST(ConfinedChild, IsKilledWithItsOwner) {
  {
    const ConfinedChild waits({}, [](int pipe) { write_pipe(pipe, std::string(1 << 20, 'x')); });
  }  // the child blocks in write_pipe, because a pipe holds less than 1 MiB
  EXPECT_EQ(raise(0), 0);  // reached only if the destructor kills the child instead of waiting for it
}

// A terminal sends Ctrl-C to parent and child alike. The child must ignore it, so that its owner decides when it ends.
TEST(ConfinedChild, LeavesSignalsOfTheTerminalToItsOwner) {
  ConfinedChild child({}, [](int pipe) {
    raise(SIGINT);
    raise(SIGTERM);
    write_pipe(pipe, std::string_view("alive"));
  });
  EXPECT_EQ(read_all(child), "alive");
}

TEST(ConfinedChild, AnEndAfterAStopRequestIsTheStop) {
  const auto stopped = [] {
    ConfinedChild child({}, [](int pipe) { write_pipe(pipe, std::string_view("half")); });
    request_stop();
    try {
      read_all(child);
    } catch (const Error& e) {
      _exit(e.kind() == ErrorKind::kNetwork ? 0 : 1);
    }
    _exit(2);
  };
  EXPECT_EXIT(stopped(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace specdec
