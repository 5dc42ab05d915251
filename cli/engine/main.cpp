// `specdec-engine`: has the same command line as `specdec`, and the runners that need LibTorch.
#include "cli/engine/runners.h"
#include "cli/engine/tensor_rank.h"
#include "cli/program.h"

int main(int argc, char** argv) {
  if (specdec::cli::is_tensor_rank(argc, argv)) return specdec::cli::run_tensor_rank(argv);
  return specdec::cli::run_program(argc, argv, specdec::cli::engine_runners());
}
