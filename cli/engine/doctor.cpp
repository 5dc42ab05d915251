// The part of `specdec doctor` that needs LibTorch: checks the GPUs and prints the findings as JSON, which
// cli/doctor.cpp in the parent process reads.
#include "base/clock.h"
#include "cli/engine/runners.h"
#include "cli/output.h"
#include "engine/self_test/gpu_check.h"

namespace specdec::cli {

int run_doctor_gpus(const Global&) {
  const Json found = json_of(self_test::check_gpus(SystemClock()));
  const std::string text = found.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  write_output(text);
  return 0;
}

}  // namespace specdec::cli
