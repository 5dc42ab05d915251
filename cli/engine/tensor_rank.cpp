#include "cli/engine/tensor_rank.h"

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "cli/error_report.h"
#include "cli/log.h"
#include "deploy/models/tensor_ranks.h"

namespace specdec::cli {

namespace {

constexpr const char* kName = "tensor-rank";

}  // namespace

std::vector<std::string> tensor_rank_command(const Global& global) {
  return {global.program, kName, global.log_format};
}

bool is_tensor_rank(int argc, char** argv) { return argc == 4 && std::strcmp(argv[1], kName) == 0; }

int run_tensor_rank(char** argv) {
  // The server decides when its ranks end, because it may answer requests for a while after a stop signal. If the
  // server dies, its socket is closed, which ends the rank.
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(number, SIG_IGN);
  Global global;
  global.log_format = argv[2];
  install_log(global);
  set_log_sink([](LogLevel level, const std::string& message) {  // only errors, because the server logs the rest itself
    if (level == LogLevel::kError) say(message, level);
  });
  const auto work = [&] {
    const auto on_lost = [](const Error& error) { std::_Exit(exit_code(error.kind())); };  // the server reports why
    return deploy::run_tensor_rank(std::atoi(argv[3]), on_lost) ? 0 : exit_code(ErrorKind::kNetwork);
  };
  return run_reported(work, global, "serve");
}

}  // namespace specdec::cli
