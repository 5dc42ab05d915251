#include "base/confined_service.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace specdec {
namespace {

int recurse(volatile int* depth) {
  volatile char frame[1024] = {};
  *depth = *depth + 1;
  return *depth > 0 ? recurse(depth) + frame[*depth % 1024] : 0;
}

std::string work(std::string_view job) {
  if (job == "pid") return std::to_string(getpid());
  if (job == "keeper") return std::to_string(getppid());
  if (job == "overflow") {
    volatile int depth = 0;
    return std::to_string(recurse(&depth));
  }
  if (job == "memory") return std::string(size_t{1} << 30, 'x');
  if (job == "grow") {
    // Maps new pages, because the heap may still have free memory from earlier tests.
    if (::mmap(nullptr, size_t{24} << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
      std::abort();
    return std::to_string(getpid());
  }
  if (job == "time")
    for (volatile bool on = true; on;) {
    }
  if (job == "abort") std::abort();
  if (job == "throw") throw Error(ErrorKind::kData, "no answer");
  return "<" + std::string(job) + ">";
}

constexpr ChildLimits kLimits{64u << 20, 1, 30};

TEST(ConfinedService, AnswersJobsOfAnySizeInOneWorker) {
  ConfinedService service(kLimits, 1, work);
  EXPECT_EQ(service.ask("a"), "<a>");
  EXPECT_EQ(service.ask(""), "<>");
  const std::string large(3u << 20, 'y');
  EXPECT_EQ(service.ask(large), "<" + large + ">");
  const auto first = service.ask("pid");
  ASSERT_TRUE(first);
  EXPECT_NE(*first, std::to_string(getpid()));
  EXPECT_EQ(service.ask("pid"), first) << "the worker lives on";
}

TEST(ConfinedService, AJobThatKillsItsWorkerFailsAlone) {
  ConfinedService service(kLimits, 1, work);
  for (const char* lethal : {"overflow", "memory", "time", "abort", "throw"}) {
    EXPECT_EQ(service.ask("before"), "<before>");
    EXPECT_EQ(service.ask(lethal), std::nullopt) << lethal;
    EXPECT_EQ(service.ask("after"), "<after>") << lethal;
  }
}

TEST(ConfinedService, AWorkerThatHasGrownIsReplacedAndNoJobIsLost) {
  ConfinedService service(kLimits, 1, work);
  std::string last;
  int replaced = 0;
  for (int i = 0; i < 12; ++i) {
    const auto pid = service.ask("grow");
    ASSERT_TRUE(pid) << "twelve times 24 MiB would be far over the limit of one worker";
    replaced += *pid != last;
    last = *pid;
  }
  EXPECT_EQ(replaced, 12);
}

TEST(ConfinedService, ManyThreadsShareTheWorkers) {
  ConfinedService service(kLimits, 3, work);
  std::vector<std::jthread> threads;
  std::vector<int> wrong(12);
  for (size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const std::string job = std::to_string(t) + "." + std::to_string(i);
        if (i == 20 && t % 4 == 0)
          wrong[t] += service.ask("abort").has_value();
        else
          wrong[t] += service.ask(job) != "<" + job + ">";
      }
    });
  threads.clear();
  EXPECT_EQ(wrong, std::vector<int>(12));
}

TEST(ConfinedService, SaysThatItsKeeperIsGone) {
  ConfinedService service(kLimits, 1, work);
  EXPECT_TRUE(service.works());
  EXPECT_EQ(service.ask("a"), "<a>");
  EXPECT_TRUE(service.works());
  EXPECT_FALSE(service.ask("abort").has_value());
  EXPECT_TRUE(service.works()) << "a worker that died is replaced";
  kill(std::stoi(service.ask("keeper").value_or("0")), SIGKILL);
  for (int i = 0; i < 1000 && service.works(); ++i) usleep(10'000);
  EXPECT_FALSE(service.works());
}

// The processes of the service end when the program ends, even if it is killed, and do not keep its terminal or pipes
// open.
TEST(ConfinedService, EndsWithTheProgram) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const int program = fork();
  if (program == 0) {
    ConfinedService service(kLimits, 2, work);
    const auto pid = service.ask("pid").value_or("");
    [[maybe_unused]] const ssize_t n = write(ends[1], pid.data(), pid.size());
    raise(SIGKILL);
  }
  close(ends[1]);
  std::string text;
  char part[64];
  // Reads to the end of the pipe, which comes only when no process has the write end open.
  for (ssize_t n = 0; (n = read(ends[0], part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(n));
  close(ends[0]);
  waitpid(program, nullptr, 0);
  ASSERT_FALSE(text.empty());
  bool alive = true;
  for (int i = 0; i < 1000 && alive; ++i) {
    alive = kill(std::stoi(text), 0) == 0;
    if (alive) usleep(10'000);
  }
  EXPECT_FALSE(alive);
}

}  // namespace
}  // namespace specdec
