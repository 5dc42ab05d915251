// Detects from the environment whether a launcher (torchrun, mpirun, Slurm, Kubernetes) started this process as one of
// several, and which rank it has.
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
  // The address of the key-value store through which the ranks find each other; empty and 0 without a launcher. If
  // agent_store is true, torchrun's agent serves the store, otherwise rank 0 does.
  std::string address;
  int port = 0;
  bool agent_store = false;
  // A socket that already listens at address:port, which rank 0 duplicates and uses; -1: rank 0 opens a socket.
  int listener = -1;
  int restarts = 0;       // how often the launcher has restarted this run
  Environment variables;  // the variables from which the values above come
};

// Detects the launcher. Launchers are checked from the innermost to the outermost, because one may run inside another:
// torchrun, Kubernetes or variables set by hand, Open MPI, Slurm, other PMI launchers. Throws Error(kConfig) if a
// variable is missing, malformed or contradicts another; the message names the variable.
Launch detect_launch(const Environment& environment);

// Returns the first host of a Slurm node list: "node001" of "node[001-003,007],gpu5". Throws Error(kConfig) if the list
// is malformed.
std::string first_host(const std::string& node_list, const std::string& variable);

// Returns the device that "auto" or "cuda" means for a process that sees `visible` GPUs. With one visible GPU it is
// this GPU, because a launcher may show each process only its own. Otherwise it is the GPU whose index is the process's
// local rank. Without GPUs, returns `flag` itself. Throws Error(kUsage) if several GPUs are visible but none has the
// local rank as its index.
std::string device_of_rank(const std::string& flag, const Launch& launch, int visible);

// The JSON form has the schema "specdec.distill_launch/1".
void visit_fields(Fields& f, Launch& launch);
Json to_json(const Launch& launch);
// Returns a text for the user: the launch that was detected or, without a launcher, how to start one.
std::string launch_text(const Launch& launch);

}  // namespace specdec::parallel
