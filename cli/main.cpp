// `specdec`: the torch-free program. Parses the whole command line, runs the light commands itself and execs
// specdec-engine for the commands that run models.
#include "cli/program.h"

int main(int argc, char** argv) { return specdec::cli::run_program(argc, argv, specdec::cli::EngineRunners{}); }
