// Log lines as values: libraries hand them to a sink that cli installs (text or JSON on stderr). The first 64
// lines that come before the first sink are handed to it when it is installed; without one they vanish.
#pragma once

#include <functional>
#include <string>

namespace specdec {

enum class LogLevel { kDebug, kInfo, kWarn, kError };
using LogSink = std::function<void(LogLevel, const std::string& message)>;

void set_log_sink(LogSink sink);                       // once, at start
void log(LogLevel level, const std::string& message);  // thread-safe

}  // namespace specdec
