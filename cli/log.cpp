#include "cli/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>

#include "base/shell.h"

namespace specdec::cli {

namespace {

// Writes log lines (base/log.h) as text, "warning: …". With --log-format json it writes every line on stderr, as JSON.
std::shared_ptr<spdlog::logger> logger;
bool is_json = false;

constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                 spdlog::level::err};

// Returns the members of a JSON line that follow "time" and "level".
std::string members(const std::string& message, const Json& more) {
  Json object = {{"message", message}};
  if (more.is_object()) object.update(more);
  const std::string text = object.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.substr(1, text.size() - 2);
}

}  // namespace

void set_log_format(const std::string& format) {
  is_json = format == "json";
  logger = std::make_shared<spdlog::logger>("specdec", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog::level::debug);
  logger->set_pattern(is_json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})" : "%^%l%$: %v");
}

void install_log(const Global& global) {
  set_log_format(global.log_format);
  const LogLevel least = global.verbosity > 0   ? LogLevel::kDebug
                         : global.verbosity < 0 ? LogLevel::kError
                                                : LogLevel::kInfo;
  set_log_sink([least](LogLevel level, const std::string& message) {
    if (level < least) return;
    logger->log(kLevels[static_cast<int>(level)], "{}", is_json ? members(message, {}) : one_line(message));
  });
}

void say(const std::string& line, LogLevel level, const Json& more) {
  if (is_json) {
    logger->log(kLevels[static_cast<int>(level)], "{}", members(line, more));
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
    std::fflush(stderr);
  }
}

}  // namespace specdec::cli
