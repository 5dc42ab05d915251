#include "base/log.h"

#include <mutex>
#include <utility>

namespace specdec {

namespace {
std::mutex mutex;
LogSink& current_sink() {
  static LogSink sink;
  return sink;
}
}  // namespace

void set_log_sink(LogSink sink) {
  const std::lock_guard lock(mutex);
  current_sink() = std::move(sink);
}

void log(LogLevel level, const std::string& message) {
  const std::lock_guard lock(mutex);
  if (current_sink()) current_sink()(level, message);
}

}  // namespace specdec
