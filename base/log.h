// Libraries pass log lines to a sink that cli installs (text or JSON on stderr). The first 64 lines logged before the
// sink is installed are kept and passed to it then; without a sink they are lost.
#pragma once

#include <functional>
#include <string>

namespace specdec {

enum class LogLevel { kDebug, kInfo, kWarn, kError };
using LogSink = std::function<void(LogLevel, const std::string& message)>;

void set_log_sink(LogSink sink);                       // called once, at the start
void log(LogLevel level, const std::string& message);  // thread-safe

}  // namespace specdec
