// Runs the bench, writes its files and prints the result: a table or one JSON object.
#include "deploy/bench/bench.h"

#include <cstdio>

#include "base/error.h"
#include "cli/engine/runners.h"

namespace specdec::cli {

int run_bench(const Global& global, const deploy::BenchOptions& options) {
  const SystemClock clock;
  const deploy::SystemCpuMeter meter;
  const deploy::BenchResult result = deploy::run_bench(options, clock, meter, make_progress(global));
  deploy::write_bench(result, options.out);
  const std::string text = global.json
                               ? deploy::to_json(result).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                               : deploy::bench_text(result) + "\nreport: " + options.out + "/bench.html\n";
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
    throw Error(ErrorKind::kIo, "standard output: write failed");
  return deploy::bench_exit_code(result.verdict);
}

}  // namespace specdec::cli
