// Standard output, which carries a command's result. A result that did not arrive must not look like success: whatever
// was printed, by whatever means, is checked when the command ends (run_reported in cli/error_report.h), and failures
// are Error(kIo).
#pragma once

#include <string_view>

namespace specdec::cli {

// Writes a part of the result at once. Throws Error(kIo) if that fails, so that long work ends early.
void write_output(std::string_view text);

// Throws Error(kIo) if something that was printed before cannot be written.
void require_output_written();

}  // namespace specdec::cli
