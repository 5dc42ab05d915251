// Standard output, which carries a command's result. A result that could not be written must not look like success:
// when the command ends, run_reported() (cli/error_report.h) checks that everything printed on stdout was written; a
// failure is Error(kIo).
#pragma once

#include <string_view>

namespace specdec::cli {

// Writes a part of the result immediately. Throws Error(kIo) if that fails, so that long work ends early.
void write_output(std::string_view text);

// Throws Error(kIo) if something that was printed on stdout could not be written.
void require_output_written();

}  // namespace specdec::cli
