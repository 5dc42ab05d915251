#include "monitor/actions/child.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

#include "base/child.h"
#include "base/error.h"
#include "base/file.h"

namespace specdec::monitor {

namespace {

// A shell script that runs the command "$@" and writes its exit code to the file $0. After a stop signal the script
// still waits for the command.
constexpr const char* kWrapper =
    "trap : TERM INT HUP; \"$@\"; code=$?; (umask 077; printf '%s\\n' $code > \"$0.tmp\") && mv -f \"$0.tmp\" \"$0\"; "
    "exit $code";

fs::path code_file(const fs::path& outcome) { return outcome.string() + ".code"; }
fs::path output_file(const fs::path& outcome) { return outcome.string() + ".out"; }

int run_wrapped(const ChildOrder& order) {
  ChildStart start{.argv = {"/bin/sh", "-c", kWrapper, code_file(order.outcome).string()},
                   .environment = order.environment,
                   .out = 2,
                   .keep = order.lock,
                   .outlives_us = true};
  start.argv.insert(start.argv.end(), order.argv.begin(), order.argv.end());
  if (order.capture) start.out = open_file(output_file(order.outcome), O_WRONLY | O_CREAT | O_TRUNC);
  Child child(start);
  if (order.capture) ::close(start.out);
  return child.wait();
}

}  // namespace

ChildEnd run_child(const ChildOrder& order) {
  make_private_directory(fs::absolute(order.outcome).parent_path());
  ChildEnd end;
  // The shell does not fsync the exit code, so after a power failure the file may be empty. Then the exit code is
  // unknown, and the command runs again.
  const std::string code = fs::exists(code_file(order.outcome)) ? read_file(code_file(order.outcome), 64) : "";
  end.code = code.ends_with('\n') ? std::atoi(code.c_str()) : run_wrapped(order);
  if (order.capture && fs::exists(output_file(order.outcome)))
    end.output = read_file(output_file(order.outcome), 16u << 20);
  return end;
}

void forget_outcome(const fs::path& outcome) {
  std::error_code ignored;
  fs::remove(code_file(outcome), ignored);
  fs::remove(output_file(outcome), ignored);
}

std::vector<std::string> shell(const std::string& command) { return {"/bin/sh", "-c", command}; }

}  // namespace specdec::monitor
