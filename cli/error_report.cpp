#include "cli/error_report.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "base/device_lost.h"
#include "base/environment.h"
#include "base/progress.h"
#include "base/schema/error_report.h"
#include "base/shell.h"
#include "base/verdict.h"
#include "cli/log.h"
#include "cli/output.h"
#include "cli/stop_deadline.h"

namespace specdec::cli {

namespace {

std::string dump(const Json& object) { return object.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Returns the members that an error has in a JSON line on stderr.
Json facts_of(const ErrorReport& report) {
  return {{"message", report.message},
          {"kind", to_string(report.kind)},
          {"exit_code", report.exit_code},
          {"command", report.command}};
}

}  // namespace

void read_report_format(Global& global) {
  const std::vector<std::string>& words = global.arguments;
  const std::string json = environment({"SPECDEC_JSON"}), format = environment({"SPECDEC_LOG_FORMAT"});
  global.json = json == "true" || json == "on" || json == "yes" || json == "1";
  if (format == "json") global.log_format = format;
  for (size_t i = 0; i < words.size() && words[i] != "--"; ++i) {
    if (words[i] == "--json") global.json = true;
    if (words[i] == "--log-format" && i + 1 < words.size()) global.log_format = words[i + 1];
    if (words[i].starts_with("--log-format=")) global.log_format = words[i].substr(words[i].find('=') + 1);
  }
  set_log_format(global.log_format);
}

int report_error(const Error& error, const Global& global, const std::string& command) {
  const bool stopped = error.kind() == ErrorKind::kNetwork && stop_requested();
  const ErrorReport report{.kind = error.kind(),
                           .message = one_line(error.what()),
                           .exit_code = stopped ? stop_exit_code() : exit_code(error.kind()),
                           .command = command};
  if (global.json) {
    std::printf("%s\n", dump(to_json(report)).c_str());
    std::fflush(stdout);
  }
  say("specdec: error: " + report.message, LogLevel::kError, facts_of(report));
  return report.exit_code;
}

int run_reported(const std::function<int()>& work, const Global& global, const std::string& command) {
  const auto failed = [&](ErrorKind kind, const std::string& message) {
    return report_error(Error(kind, message), global, command);
  };
  try {
    const int code = work();
    require_output_written();
    return code;
  } catch (const Error& e) {
    return report_error(e, global, command);
  } catch (const DeviceLost& lost) {
    const char* const gpu = "the GPU can no longer be used by this process: ";
    return failed(lost.kind(), (lost.kind() == ErrorKind::kDevice ? gpu : "") + lost.what());
  } catch (const std::bad_alloc&) {
    return failed(ErrorKind::kDevice, "out of memory");
  } catch (const std::filesystem::filesystem_error& e) {
    return failed(ErrorKind::kIo, e.path1().string() + ": " + e.code().message());
  } catch (const std::exception& e) {
    return failed(ErrorKind::kInternal, e.what());
  }
}

int report_stale(const std::string& reason) {
  const int code = exit_code(Verdict::kStale);
  say("specdec: stale draft: " + reason + "; distil it anew, or use --allow-stale", LogLevel::kError,
      {{"exit_code", code}});
  return code;
}

void prepare_stop_report(const Global& global, const std::string& command) {
  set_stop_report([&](int code, const std::string& message) {
    const ErrorReport report{.kind = ErrorKind::kNetwork, .message = message, .exit_code = code, .command = command};
    StopReport printed;
    if (global.json) printed.to_stdout = dump(to_json(report)) + "\n";
    if (global.log_format == "json") {
      Json line = facts_of(report);  // without "time", which a signal handler cannot format
      line["level"] = "error";
      printed.to_stderr = dump(line) + "\n";
    } else {
      printed.to_stderr = "\nspecdec: error: " + message + "\n";
    }
    return printed;
  });
}

}  // namespace specdec::cli
