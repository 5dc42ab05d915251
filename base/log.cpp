#include "base/log.h"

#include <mutex>
#include <utility>
#include <vector>

namespace specdec {

namespace {
std::mutex mutex;
LogSink& current_sink() {
  static LogSink sink;
  return sink;
}

// Number of lines kept if logged before the sink is installed, such as warnings about the command line.
constexpr size_t kMostEarly = 64;
std::vector<std::pair<LogLevel, std::string>>& early_lines() {
  static std::vector<std::pair<LogLevel, std::string>> lines;
  return lines;
}
bool sink_was_set = false;
}  // namespace

void set_log_sink(LogSink sink) {
  const std::lock_guard lock(mutex);
  sink_was_set = true;
  current_sink() = std::move(sink);
  for (const auto& [level, message] : std::exchange(early_lines(), {}))
    if (current_sink()) current_sink()(level, message);
}

void log(LogLevel level, const std::string& message) {
  const std::lock_guard lock(mutex);
  if (current_sink())
    current_sink()(level, message);
  else if (!sink_was_set && early_lines().size() < kMostEarly)
    early_lines().emplace_back(level, message);
}

}  // namespace specdec
