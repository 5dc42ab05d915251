#include "cli/stop_deadline.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>

#include "base/progress.h"

namespace specdec::cli {

namespace {

// These variables are lock-free, so that signal handlers may use them.
std::atomic<int> signal_number{SIGTERM};
std::atomic<unsigned> seconds_left{kStopSeconds};
std::atomic<bool> resumes{false};

void say(const char* text) { [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text, std::strlen(text)); }

void end_process(int) {
  say(resumes ? "\nspecdec: error: stopped by a signal, in the middle of its work: the same command goes on from what "
                "was saved\n"
              : "\nspecdec: error: stopped by a signal, in the middle of its work\n");
  ::_exit(stop_exit_code());
}

}  // namespace

void stop_by_signal(int number) {
  signal_number = number;
  request_stop();
  std::signal(SIGALRM, end_process);
  ::alarm(seconds_left);
}

void set_stop_seconds(unsigned seconds) {
  seconds_left = seconds;
  if (stop_requested()) ::alarm(seconds);
}

void set_stop_resumes() { resumes = true; }

int stop_exit_code() { return resumes ? 75 : 128 + signal_number; }

}  // namespace specdec::cli
