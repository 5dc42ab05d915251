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
std::atomic<double> first_interrupt{-1}, first_of_others{-1};  // arrival times in seconds; -1 = not yet
std::string resuming_command;                                  // set before any handler can use it

// The reports after SIGINT and after any other signal, prepared before a signal handler can use them.
StopReport of_interrupt, of_others;

std::string message() {
  return std::string("stopped by a signal, in the middle of its work") +
         (resumes ? ": " + resuming_command + " goes on from what was saved" : "");
}

void put(int file, const std::string& text) {
  [[maybe_unused]] const ssize_t ignored = ::write(file, text.data(), text.size());
}

void end_process(int) {
  const StopReport& report = signal_number == SIGINT ? of_interrupt : of_others;
  put(STDOUT_FILENO, report.to_stdout);
  put(STDERR_FILENO, report.to_stderr);
  ::_exit(stop_exit_code());
}

}  // namespace

void stop_by_signal(int number, double now_seconds) {
  std::atomic<double>& first = number == SIGINT ? first_interrupt : first_of_others;
  if (first >= 0) {
    if (now_seconds - first < kSameRequestSeconds) return;
    std::signal(number, SIG_DFL);
    ::raise(number);  // the raised signal ends the process when the handler returns
    return;
  }
  first = now_seconds;
  signal_number = number;
  request_stop();
  std::signal(SIGALRM, end_process);
  ::alarm(seconds_left);
}

void set_stop_seconds(unsigned seconds) {
  seconds_left = seconds;
  if (stop_requested()) ::alarm(seconds);
}

void set_stop_resumes(const std::string& command) {
  resuming_command = command;
  resumes = true;
}

void set_stop_report(const std::function<StopReport(int exit_code, const std::string& message)>& make) {
  of_interrupt = make(resumes ? 75 : 128 + SIGINT, message());
  of_others = make(resumes ? 75 : 128 + SIGTERM, message());
}

int stop_exit_code() { return resumes ? 75 : 128 + signal_number; }

}  // namespace specdec::cli
