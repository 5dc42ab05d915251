// Runs the bench, writes its files and prints the result: a table or one JSON object.
#include "deploy/bench/bench.h"

#include "cli/engine/runners.h"
#include "cli/output.h"

namespace specdec::cli {

int run_bench(const Global& global, const deploy::BenchOptions& options) {
  const SystemClock clock;
  const deploy::SystemCpuMeter meter;
  const deploy::BenchResult result = deploy::run_bench(options, clock, meter, make_progress(global));
  deploy::write_bench(result, options.out);
  const std::string text = global.json
                               ? deploy::to_json(result).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                               : deploy::bench_text(result) + "\nreport: " + options.out + "/bench.html\n";
  write_output(text);
  return deploy::bench_exit_code(result.verdict);
}

}  // namespace specdec::cli
