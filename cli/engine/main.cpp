// `specdec-engine`: the same command line with the runners that need LibTorch.
#include "cli/engine/runners.h"
#include "cli/program.h"

int main(int argc, char** argv) { return specdec::cli::run_program(argc, argv, specdec::cli::engine_runners()); }
