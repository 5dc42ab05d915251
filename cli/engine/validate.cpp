// Runs the gate, writes its files and prints the result: lines for people or one JSON object.
#include "deploy/validate/validate.h"

#include <cstdio>

#include "base/error.h"
#include "cli/engine/runners.h"

namespace specdec::cli {

int run_validate(const Global& global, const deploy::ValidateOptions& options) {
  const SystemClock clock;
  const deploy::Validation v = deploy::run_validate(options, clock, make_progress(global));
  deploy::write_validation(v, options.out);
  const std::string text =
      global.json ? to_json(v.report).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                  : deploy::report_text(v.report, v.details) + "  report             " + options.out + "/report.html\n";
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    throw Error(ErrorKind::kIo, "standard output: write failed");
  return options.exit_zero ? 0 : verdict_exit_code(v.report.verdict);
}

}  // namespace specdec::cli
