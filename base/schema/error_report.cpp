#include "base/schema/error_report.h"

#include "base/version.h"

namespace specdec {

namespace {

const char kErrorSchema[] = "specdec.error/";

constexpr Named<ErrorKind> kKinds[] = {{ErrorKind::kUsage, "usage"},   {ErrorKind::kConfig, "config"},
                                       {ErrorKind::kData, "data"},     {ErrorKind::kModel, "model"},
                                       {ErrorKind::kIo, "io"},         {ErrorKind::kNetwork, "network"},
                                       {ErrorKind::kDevice, "device"}, {ErrorKind::kInternal, "internal"}};

}  // namespace

const char* to_string(ErrorKind kind) { return kKinds[static_cast<int>(kind)].name; }

void visit_fields(Fields& f, ErrorReport& report) {
  f.type("ErrorReport", "What every command prints when it fails.");
  f.schema("error", ErrorReport::kVersion);
  f.constant("verdict", "error");
  f.one_of("kind", report.kind, kKinds);
  f("message", report.message);
  f("exit_code", report.exit_code);
  f("command", report.command);
  std::string version = kToolVersion;
  f("tool_version", version);
}

Json to_json(const ErrorReport& report) { return json_of(report); }

std::optional<std::string> error_message(const Json& printed) {
  const auto text = [&](const char* key) {
    const auto found = printed.is_object() ? printed.find(key) : printed.end();
    return found != printed.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (!text("schema").starts_with(kErrorSchema)) return std::nullopt;
  return text("message");
}

}  // namespace specdec
