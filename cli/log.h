// Writes everything that this program prints on stderr: lines of text, or with --log-format json one JSON object per
// line, {"time", "level", "message"}, for some lines with more members.
#pragma once

#include "base/json.h"
#include "base/log.h"
#include "cli/command.h"

namespace specdec::cli {

// Chooses the format. The lines that say() writes before the first call are text.
void set_log_format(const std::string& format);

// Installs the sink of base/log.h. The sink drops lines that the verbosity excludes.
void install_log(const Global& global);

// Writes a line of the command itself, whatever the verbosity. As text, only `line` is written. As JSON, the members of
// `more` are added; the message is `line`, unless `more` has a member "message".
void say(const std::string& line, LogLevel level = LogLevel::kInfo, const Json& more = {});

}  // namespace specdec::cli
