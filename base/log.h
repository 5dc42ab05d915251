// Log lines as values: libraries hand them to a sink that cli installs (text or JSON on stderr); without a sink they vanish.
#pragma once

#include <functional>
#include <string>

namespace specdec {

enum class LogLevel { kDebug, kInfo, kWarn, kError };
using LogSink = std::function<void(LogLevel, const std::string& message)>;

void set_log_sink(LogSink sink);   // once, at start
void log(LogLevel level, const std::string& message);  // thread-safe

}  // namespace specdec
