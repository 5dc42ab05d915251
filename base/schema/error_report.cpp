#include "base/schema/error_report.h"

#include "base/version.h"

namespace specdec {

namespace {
const char kErrorSchema[] = "specdec.error/";
}

const char* to_string(ErrorKind kind) {
  constexpr const char* kNames[] = {"usage", "config", "data", "model", "io", "network", "device", "internal"};
  return kNames[static_cast<int>(kind)];
}

Json to_json(const ErrorReport& report) {
  return {{"schema", kErrorSchema + std::to_string(ErrorReport::kVersion)},
          {"verdict", "error"},
          {"kind", to_string(report.kind)},
          {"message", report.message},
          {"exit_code", report.exit_code},
          {"command", report.command},
          {"tool_version", kToolVersion}};
}

std::optional<std::string> error_message(const Json& printed) {
  const auto text = [&](const char* key) {
    const auto found = printed.is_object() ? printed.find(key) : printed.end();
    return found != printed.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (!text("schema").starts_with(kErrorSchema)) return std::nullopt;
  return text("message");
}

}  // namespace specdec
