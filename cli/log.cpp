#include "cli/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "base/json.h"
#include "base/log.h"
#include "base/shell.h"

namespace specdec::cli {

void install_log(const Global& global) {
  auto logger = std::make_shared<spdlog::logger>("specdec", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(global.verbosity > 0   ? spdlog::level::debug
                    : global.verbosity < 0 ? spdlog::level::err
                                           : spdlog::level::info);
  const bool json = global.log_format == "json";
  logger->set_pattern(json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":%v})" : "%^%l%$: %v");
  set_log_sink([logger, json](LogLevel level, const std::string& message) {
    const std::string text =
        json ? Json(message).dump(-1, ' ', false, Json::error_handler_t::replace) : one_line(message);
    constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                     spdlog::level::err};
    logger->log(kLevels[static_cast<int>(level)], "{}", text);
  });
}

}  // namespace specdec::cli
