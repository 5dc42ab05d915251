// Finds out from the environment whether a launcher (torchrun, mpirun, Slurm, Kubernetes) started this process as one
// of several, and which one of them it is.
#pragma once

#include <map>
#include <string>

#include "base/fields.h"

namespace specdec::parallel {

using Environment = std::map<std::string, std::string>;
Environment process_environment();

// The place of this process among the processes ("ranks") of a run.
struct Launch {
  // "none", "torchrun", "kubernetes", "mpi", "slurm", or "environment" (RANK and WORLD_SIZE set by hand).
  std::string launcher = "none";
  int rank = 0, ranks = 1;
  int local_rank = 0, local_ranks = 1;  // among the processes of this machine
  // Where rank 0 listens; empty and 0 without a launcher. With `agent_store` torchrun's agent listens there instead.
  std::string address;
  int port = 0;
  bool agent_store = false;
  // A socket that listens at address:port already, which rank 0 takes a copy of; -1: rank 0 opens one.
  int listener = -1;
  int restarts = 0;       // how often the launcher has started this run again
  Environment variables;  // those that the values above come from
};

// Asks the launchers from the innermost to the outermost, because one may run inside the other: torchrun, Kubernetes or
// variables set by hand, Open MPI, Slurm, other PMI launchers. Throws Error(kConfig) for a variable that is missing, is
// malformed or contradicts another; the message names it.
Launch detect_launch(const Environment& environment);

// Returns the first host of a Slurm node list: "node001" of "node[001-003,007],gpu5". Throws Error(kConfig).
std::string first_host(const std::string& node_list, const std::string& variable);

// Returns the device that "auto" or "cuda" means for a process that sees `visible` GPUs: the one of its local rank, or
// the only one, because a launcher may show each process its own. Without GPUs it returns the flag itself. Throws
// Error(kUsage) if there are fewer GPUs than processes.
std::string device_of_rank(const std::string& flag, const Launch& launch, int visible);

// Schema "specdec.distill_launch/1".
void visit_fields(Fields& f, Launch& launch);
Json to_json(const Launch& launch);
// Lines for people: what was found, or without a launcher how to start one.
std::string launch_text(const Launch& launch);

}  // namespace specdec::parallel
