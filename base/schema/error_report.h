// The JSON that a command prints on stdout when it fails under --json, so that a program need not parse stderr.
// {"schema", "verdict": "error", "kind", "message", "exit_code", "command", "tool_version"}
#pragma once

#include <optional>
#include <string>

#include "base/fields.h"

namespace specdec {

struct ErrorReport {
  static constexpr int kVersion = 1;  // "schema":"specdec.error/1"
  ErrorKind kind = ErrorKind::kInternal;
  std::string message = "";  // on one line, as on stderr
  int exit_code = 1;
  std::string command = "";  // "data ingest"; "" if the command line names none
};
void visit_fields(Fields& f, ErrorReport& report);
Json to_json(const ErrorReport& report);
// Returns the name of the kind in JSON: "usage", "config", "data", "model", "io", "network", "device", "internal".
const char* to_string(ErrorKind kind);

// Returns the message if the JSON that a command printed is an error report of any version, nullopt if it is a result.
std::optional<std::string> error_message(const Json& printed);

}  // namespace specdec
