#include "engine/parallel/launch.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "base/error.h"

namespace specdec::parallel {

namespace {

constexpr int kMostRanks = 1 << 16, kDefaultPort = 29500;  // kDefaultPort: c10d's default
constexpr size_t kMostNameBytes = 255;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorKind::kConfig, message); }

std::string shown(const std::string& value) { return "'" + value.substr(0, 80) + "'"; }

// Reads environment variables and records them in the launch. A variable with an empty value counts as not set.
class Reader {
 public:
  Reader(const Environment& environment, Launch& launch) : environment_(environment), launch_(launch) {}

  bool has(const std::string& name) const {
    const auto found = environment_.find(name);
    return found != environment_.end() && !found->second.empty();
  }
  std::optional<std::string> text(const std::string& name) {
    if (!has(name)) return std::nullopt;
    return launch_.variables[name] = environment_.at(name);
  }
  std::optional<int> number(const std::string& name, int low, int high) {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int out = 0;
    const auto [stop, error] = std::from_chars(value->data(), value->data() + value->size(), out);
    if (error != std::errc() || stop != value->data() + value->size() || out < low || out > high)
      refuse(name + ": expected a number in [" + std::to_string(low) + ", " + std::to_string(high) + "], found " +
             shown(*value));
    return out;
  }
  // Returns the number in the variable `name`. If `name` is not set, throws an error that names the variable `because`,
  // which is set and requires `name`.
  int needed(const std::string& name, int low, int high, const std::string& because) {
    const auto value = number(name, low, high);
    if (!value) refuse(name + " is not set, and " + because + " is: set both or neither");
    return *value;
  }

 private:
  const Environment& environment_;
  Launch& launch_;
};

std::string host_name(const std::string& value, const std::string& variable) {
  const bool good =
      !value.empty() && value.size() <= kMostNameBytes && std::all_of(value.begin(), value.end(), [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_' || c == ':';
      });
  if (!good) refuse(variable + ": expected a host name or an address, found " + shown(value));
  return value;
}

// Reads the address and port of rank 0 from MASTER_ADDR and MASTER_PORT. Unset variables get the given defaults; if the
// default address is empty, MASTER_ADDR is required.
void take_address(Reader& in, Launch& out, const std::string& address, int port, const std::string& hint) {
  const auto given = in.text("MASTER_ADDR");
  if (!given && address.empty())
    refuse("MASTER_ADDR is not set: " + std::to_string(out.ranks) + " processes need the address of rank 0" + hint);
  out.address = given ? host_name(*given, "MASTER_ADDR") : address;
  out.port = in.number("MASTER_PORT", 1, 65535).value_or(port);
}

struct RankNames {
  std::string rank, ranks, local_rank, local_ranks;
};
// Reads rank and number of ranks from the variables `names`. `rank` and `ranks` must be set; the local rank and number
// of local ranks default to 0 and 1.
void take_ranks(Reader& in, Launch& out, const RankNames& names) {
  const std::string& either = in.has(names.rank) ? names.rank : names.ranks;
  out.ranks = in.needed(names.ranks, 1, kMostRanks, either);
  out.rank = in.needed(names.rank, 0, kMostRanks - 1, either);
  if (out.rank >= out.ranks)
    refuse(names.rank + " is " + std::to_string(out.rank) + ", and " + names.ranks + " is " +
           std::to_string(out.ranks) + ": ranks go from 0 to " + names.ranks + " - 1");
  out.local_rank = in.number(names.local_rank, 0, kMostRanks - 1).value_or(0);
  out.local_ranks = in.number(names.local_ranks, 1, kMostRanks).value_or(out.local_rank + 1);
  if (out.local_rank >= out.local_ranks)
    refuse(names.local_rank + " is " + std::to_string(out.local_rank) + ", and " + names.local_ranks + " is " +
           std::to_string(out.local_ranks) + ": local ranks go from 0 to " + names.local_ranks + " - 1");
  if (out.local_ranks > out.ranks)
    refuse((in.has(names.local_ranks) ? names.local_ranks : names.local_rank) + " means at least " +
           std::to_string(out.local_ranks) + " processes on this machine, and " + names.ranks + " is " +
           std::to_string(out.ranks));
}

// Handles RANK and WORLD_SIZE, set by torchrun, PyTorchJob or a person. Indexed Jobs and JobSets of Kubernetes give the
// rank as JOB_COMPLETION_INDEX instead.
bool from_rank_variables(Reader& in, Launch& out) {
  const bool indexed = !in.has("RANK") && in.has("WORLD_SIZE") && in.has("JOB_COMPLETION_INDEX");
  if (!in.has("RANK") && !in.has("WORLD_SIZE")) return false;
  const bool elastic = in.has("TORCHELASTIC_RUN_ID");
  out.launcher = elastic                                                               ? "torchrun"
                 : in.has("KUBERNETES_SERVICE_HOST") || in.has("JOB_COMPLETION_INDEX") ? "kubernetes"
                                                                                       : "environment";
  take_ranks(in, out, {indexed ? "JOB_COMPLETION_INDEX" : "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  if (out.ranks == 1 && !elastic) return true;
  take_address(in, out, "", kDefaultPort, "");
  if (!elastic) return true;
  in.text("TORCHELASTIC_RUN_ID");
  out.agent_store = in.text("TORCHELASTIC_USE_AGENT_STORE").value_or("False") == "True";
  out.restarts = in.number("TORCHELASTIC_RESTART_COUNT", 0, INT32_MAX).value_or(0);
  return true;
}

// Handles the PET_* variables that Kubeflow's trainer sets for torchrun, in a container that starts specdec directly.
// Each machine then runs one process.
bool from_elastic_settings(Reader& in, Launch& out) {
  if (!in.has("PET_NNODES") && !in.has("PET_NODE_RANK")) return false;
  out.launcher = "kubernetes";
  const auto per_node = in.text("PET_NPROC_PER_NODE");
  if (per_node && *per_node != "1")
    refuse("PET_NPROC_PER_NODE is " + shown(*per_node) +
           ", and specdec itself was started: let the container start `torchrun --no-python specdec distill …`");
  take_ranks(in, out, {"PET_NODE_RANK", "PET_NNODES", "", ""});
  if (out.ranks == 1) return true;
  const auto address = in.text("PET_MASTER_ADDR");
  const int port = in.number("PET_MASTER_PORT", 1, 65535).value_or(kDefaultPort);
  take_address(in, out, address ? host_name(*address, "PET_MASTER_ADDR") : "", port, " (or PET_MASTER_ADDR)");
  return true;
}

constexpr const char* kMpiHint = ": mpirun -x MASTER_ADDR=HOST_OF_RANK_0 …";

bool from_open_mpi(Reader& in, Launch& out) {
  if (!in.has("OMPI_COMM_WORLD_RANK") && !in.has("OMPI_COMM_WORLD_SIZE")) return false;
  out.launcher = "mpi";
  take_ranks(
      in, out,
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  if (out.ranks == 1) return true;
  const bool one_machine = in.has("OMPI_COMM_WORLD_LOCAL_SIZE") && out.local_ranks == out.ranks;
  take_address(in, out, one_machine ? "127.0.0.1" : "", kDefaultPort, kMpiHint);
  return true;
}

// Handles MPICH, Intel MPI and other launchers that set PMI_* variables.
bool from_pmi(Reader& in, Launch& out) {
  if (!in.has("PMI_RANK") && !in.has("PMI_SIZE")) return false;
  out.launcher = "mpi";
  take_ranks(in, out, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"});
  if (out.ranks == 1) return true;
  const bool one_machine = in.has("MPI_LOCALNRANKS") && out.local_ranks == out.ranks;
  take_address(in, out, one_machine ? "127.0.0.1" : "", kDefaultPort, kMpiHint);
  return true;
}

// Returns entry `node` of Slurm's list of tasks per node, such as "4(x2),1".
int tasks_of_node(const std::string& list, int node, const std::string& variable) {
  const char *at = list.data(), *end = list.data() + list.size();
  while (at < end) {
    int tasks = 0, nodes = 1;
    auto [stop, error] = std::from_chars(at, end, tasks);
    if (error == std::errc() && end - stop >= 4 && stop[0] == '(' && stop[1] == 'x') {
      const auto repeated = std::from_chars(stop + 2, end, nodes);
      error = repeated.ec;
      stop = repeated.ptr;
      if (stop == end || *stop++ != ')') break;
    }
    if (error != std::errc() || tasks < 1 || nodes < 1 || (stop < end && *stop != ',')) break;
    if (node < nodes) return tasks;
    node -= nodes;
    at = stop + 1;
  }
  refuse(variable + ": expected the tasks of each node, such as 4(x2),1, found " + shown(list));
}

bool from_slurm(Reader& in, Launch& out) {
  if (!in.has("SLURM_PROCID")) return false;
  // Slurm sets SLURM_ variables in a batch script too, but the script is a single process. Only srun starts several.
  if (!in.has("SLURM_STEP_ID")) {
    if (in.number("SLURM_NTASKS", 1, kMostRanks).value_or(1) == 1) return false;
    refuse("SLURM_NTASKS is " + *in.text("SLURM_NTASKS") +
           ", and SLURM_STEP_ID is not set: start this command with `srun`, or with `srun --ntasks=1` for one process");
  }
  out.launcher = "slurm";
  in.text("SLURM_STEP_ID");
  take_ranks(
      in, out,
      {"SLURM_PROCID", in.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", "SLURM_LOCALID", ""});
  out.restarts = in.number("SLURM_RESTART_COUNT", 0, INT32_MAX).value_or(0);
  if (out.ranks == 1) return true;
  const std::string tasks = in.has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  if (const auto list = in.text(tasks)) {
    out.local_ranks = tasks_of_node(*list, in.number("SLURM_NODEID", 0, kMostRanks).value_or(0), tasks);
    if (out.local_rank >= out.local_ranks)
      refuse("SLURM_LOCALID is " + std::to_string(out.local_rank) + ", and " + tasks + " says that this node has " +
             std::to_string(out.local_ranks) + " tasks");
  }
  const std::string nodes = in.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  const auto list = in.text(nodes);
  const int job = in.number("SLURM_JOB_ID", 0, INT32_MAX).value_or(0);
  if (!list && !in.has("MASTER_ADDR")) refuse(nodes + " is not set, and SLURM_PROCID is: rank 0 cannot be found");
  take_address(in, out, list ? first_host(*list, nodes) : "", 20000 + job % 20000, "");
  return true;
}

}  // namespace

Environment process_environment() {
  Environment out;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) out.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return out;
}

std::string first_host(const std::string& node_list, const std::string& variable) {
  std::string out;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] != '[') {
      out += node_list[i];
      continue;
    }
    const size_t close = node_list.find(']', i), end = node_list.find_first_of("-,]", i);
    if (close == std::string::npos || end == i + 1) refuse(variable + ": malformed node list " + shown(node_list));
    out += node_list.substr(i + 1, end - i - 1);
    i = close;
  }
  return host_name(out, variable);
}

Launch detect_launch(const Environment& environment) {
  for (const auto& from : {from_rank_variables, from_elastic_settings, from_open_mpi, from_slurm, from_pmi}) {
    Launch launch;
    Reader in(environment, launch);
    if (from(in, launch)) return launch;
  }
  return {};
}

std::string device_of_rank(const std::string& flag, const Launch& launch, int visible) {
  if (visible == 0 || (flag != "auto" && flag != "cuda")) return flag;
  if (visible == 1) return "cuda:0";
  if (launch.local_rank >= visible)
    throw Error(ErrorKind::kUsage, "local rank " + std::to_string(launch.local_rank) +
                                       " has no GPU of its own: " + std::to_string(visible) +
                                       " are visible; start as many processes on each machine as it has GPUs");
  return "cuda:" + std::to_string(launch.local_rank);
}

void visit_fields(Fields& f, Launch& l) {
  f.type("DistillLaunch",
         "What `distill --print-launch` found: the place of this process among those that a launcher started.");
  f.schema("distill_launch", 1);
  f.one_of("launcher", l.launcher, {"none", "torchrun", "kubernetes", "mpi", "slurm", "environment"});
  f("rank", l.rank);
  f("world_size", l.ranks);
  f("local_rank", l.local_rank);
  f("local_world_size", l.local_ranks);
  f("master_addr", l.address);
  f("master_port", l.port);
  f("restarts", l.restarts);
  f("variables", l.variables, MapRule{});
}

Json to_json(const Launch& launch) { return json_of(launch); }

std::string launch_text(const Launch& l) {
  if (l.launcher == "none")
    return "launcher     none: one process\n"
           "start several, each with the same arguments, by one of\n"
           "  torchrun --no-python --nproc-per-node 8 specdec distill …\n"
           "  srun --ntasks-per-node 8 --gpus-per-node 8 specdec distill …\n"
           "  mpirun -np 8 specdec distill …\n";
  std::string text = "launcher     " + l.launcher + "\nrank         " + std::to_string(l.rank) + " of " +
                     std::to_string(l.ranks) + ", " + std::to_string(l.local_rank) + " of " +
                     std::to_string(l.local_ranks) + " on this machine\n";
  if (l.ranks > 1 || l.port > 0)
    text += "rank 0       " + l.address + ":" + std::to_string(l.port) +
            (l.agent_store ? " (torchrun's agent listens there)" : "") + "\n";
  if (l.restarts > 0) text += "restarts     " + std::to_string(l.restarts) + "\n";
  std::string names;
  for (const auto& [name, value] : l.variables) names += (names.empty() ? "" : ", ") + name;
  return text + "found in     " + names + "\n";
}

}  // namespace specdec::parallel
