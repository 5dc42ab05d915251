#include "engine/parallel/launch.h"

#include <gtest/gtest.h>

#include "tests/base/scratch.h"

namespace specdec::parallel {
namespace {

using specdec::testing::expect_error;

struct Found {
  const char* launcher;
  int rank, ranks, local_rank, local_ranks;
  const char* address;
  int port;
};

void expect_found(const Environment& environment, const Found& expected) {
  const Launch l = detect_launch(environment);
  EXPECT_EQ(l.launcher, expected.launcher);
  EXPECT_EQ(l.rank, expected.rank);
  EXPECT_EQ(l.ranks, expected.ranks);
  EXPECT_EQ(l.local_rank, expected.local_rank);
  EXPECT_EQ(l.local_ranks, expected.local_ranks);
  EXPECT_EQ(l.address, expected.address);
  EXPECT_EQ(l.port, expected.port);
  for (const auto& [name, value] : l.variables) EXPECT_EQ(environment.at(name), value);
}

Environment with(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) environment[name] = value;
  return environment;
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

// The variables that torchrun 2.11 sets for the sixth of eight processes on two machines.
const Environment kTorchrun = {{"RANK", "5"},
                               {"LOCAL_RANK", "1"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"GROUP_RANK", "1"},
                               {"MASTER_ADDR", "node-a.example"},
                               {"MASTER_PORT", "29400"},
                               {"TORCHELASTIC_RUN_ID", "job7"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"},
                               {"TORCHELASTIC_MAX_RESTARTS", "3"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"OMP_NUM_THREADS", "1"}};
const Environment kSlurm = {{"SLURM_PROCID", "5"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_NODEID", "1"},
                            {"SLURM_NTASKS", "7"},
                            {"SLURM_STEP_ID", "0"},
                            {"SLURM_STEP_NUM_TASKS", "7"},
                            {"SLURM_STEP_NODELIST", "gpu[003,007-008]"},
                            {"SLURM_JOB_NODELIST", "gpu[001-008]"},
                            {"SLURM_STEP_TASKS_PER_NODE", "3(x2),1"},
                            {"SLURM_JOB_ID", "4120007"},
                            {"SLURM_RESTART_COUNT", "1"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};

TEST(Launch, NothingSetIsOneProcess) {
  expect_found({{"PATH", "/bin"}, {"RANK", ""}}, {"none", 0, 1, 0, 1, "", 0});
  EXPECT_NE(launch_text({}).find("torchrun --no-python"), std::string::npos);
  EXPECT_NE(launch_text({}).find("srun "), std::string::npos);
  EXPECT_NE(launch_text({}).find("mpirun "), std::string::npos);
}

TEST(Launch, EveryLauncher) {
  expect_found(kTorchrun, {"torchrun", 5, 8, 1, 4, "node-a.example", 29400});
  EXPECT_TRUE(detect_launch(kTorchrun).agent_store);
  EXPECT_EQ(detect_launch(kTorchrun).restarts, 2);
  expect_found({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "::1"}}, {"environment", 1, 2, 0, 1, "::1", 29500});
  // Kubernetes: a PyTorchJob, an Indexed Job or JobSet, and Kubeflow's trainer without torchrun.
  expect_found({{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                {"RANK", "1"},
                {"WORLD_SIZE", "3"},
                {"MASTER_ADDR", "job-master-0"},
                {"MASTER_PORT", "23456"}},
               {"kubernetes", 1, 3, 0, 1, "job-master-0", 23456});
  expect_found({{"JOB_COMPLETION_INDEX", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "job-workers-0-0.job"}},
               {"kubernetes", 2, 3, 0, 1, "job-workers-0-0.job", 29500});
  expect_found({{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}, {"PET_NPROC_PER_NODE", "1"}, {"PET_MASTER_ADDR", "m"}},
               {"kubernetes", 1, 2, 0, 1, "m", 29500});
  expect_found(kSlurm, {"slurm", 5, 7, 1, 3, "gpu003", 20007});
  EXPECT_EQ(detect_launch(kSlurm).restarts, 1);
  expect_found(with(kSlurm, {{"MASTER_ADDR", "10.1.2.3"}, {"MASTER_PORT", "4000"}}),
               {"slurm", 5, 7, 1, 3, "10.1.2.3", 4000});
  expect_found(kOpenMpi, {"mpi", 3, 4, 3, 4, "127.0.0.1", 29500});
  expect_found(
      with(kOpenMpi,
           {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"MASTER_ADDR", "head"}}),
      {"mpi", 3, 4, 1, 2, "head", 29500});
  expect_found({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
               {"mpi", 1, 2, 1, 2, "127.0.0.1", 29500});
}

TEST(Launch, TheInnermostLauncherCounts) {
  // In this order: torchrun inside Slurm, mpirun inside Slurm, and srun --mpi=pmi2.
  EXPECT_EQ(detect_launch(with(kSlurm, kTorchrun)).launcher, "torchrun");
  EXPECT_EQ(detect_launch(with(kSlurm, kOpenMpi)).launcher, "mpi");
  EXPECT_EQ(detect_launch(with(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "7"}})).launcher, "slurm");
}

TEST(Launch, OneProcessNeedsNoAddress) {
  expect_found({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, {"environment", 0, 1, 0, 1, "", 0});
  expect_found({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "3"}}, {"slurm", 0, 1, 0, 1, "", 0});
  // A batch script of one task that was not started by srun counts as started without a launcher.
  expect_found({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}, {"none", 0, 1, 0, 1, "", 0});
}

TEST(Launch, MissingMalformedAndContradictingVariablesAreNamed) {
  const struct {
    Environment environment;
    std::vector<std::string> parts;
  } kWrong[] = {
      {without(kTorchrun, "WORLD_SIZE"), {"WORLD_SIZE is not set", "RANK is"}},
      {without(kTorchrun, "RANK"), {"RANK is not set", "WORLD_SIZE is"}},
      {without(kTorchrun, "MASTER_ADDR"), {"MASTER_ADDR is not set", "8 processes"}},
      {with(kTorchrun, {{"RANK", "8"}}), {"RANK is 8", "WORLD_SIZE is 8"}},
      {with(kTorchrun, {{"RANK", "-1"}}), {"RANK", "'-1'"}},
      {with(kTorchrun, {{"RANK", "1x"}}), {"RANK", "'1x'"}},
      {with(kTorchrun, {{"WORLD_SIZE", "99999999999"}}), {"WORLD_SIZE", "[1, 65536]"}},
      {with(kTorchrun, {{"LOCAL_RANK", "4"}}), {"LOCAL_RANK is 4", "LOCAL_WORLD_SIZE is 4"}},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), {"LOCAL_WORLD_SIZE", "9 processes", "WORLD_SIZE is 8"}},
      {with(kTorchrun, {{"MASTER_PORT", "0"}}), {"MASTER_PORT", "[1, 65535]", "'0'"}},
      {with(kTorchrun, {{"MASTER_ADDR", "a host"}}), {"MASTER_ADDR", "'a host'"}},
      {with(kTorchrun, {{"MASTER_ADDR", std::string(300, 'a')}}), {"MASTER_ADDR"}},
      {{{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}, {"PET_NPROC_PER_NODE", "8"}}, {"PET_NPROC_PER_NODE", "torchrun"}},
      {{{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}}, {"MASTER_ADDR", "PET_MASTER_ADDR"}},
      {{{"PET_NNODES", "2"}}, {"PET_NODE_RANK is not set", "PET_NNODES"}},
      {without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), {"OMPI_COMM_WORLD_SIZE is not set"}},
      {without(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE"), {"MASTER_ADDR is not set", "mpirun -x MASTER_ADDR"}},
      {{{"PMI_RANK", "0"}}, {"PMI_SIZE is not set", "PMI_RANK"}},
      {without(kSlurm, "SLURM_STEP_ID"), {"SLURM_NTASKS is 7", "srun"}},
      {without(without(kSlurm, "SLURM_STEP_NODELIST"), "SLURM_JOB_NODELIST"), {"SLURM_JOB_NODELIST is not set"}},
      {with(kSlurm, {{"SLURM_LOCALID", "3"}}), {"SLURM_LOCALID is 3", "SLURM_STEP_TASKS_PER_NODE", "3 tasks"}},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "3(x2"}}), {"SLURM_STEP_TASKS_PER_NODE", "'3(x2'"}},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "4"}}), {"SLURM_STEP_TASKS_PER_NODE", "'4'"}},
  };
  for (const auto& wrong : kWrong)
    expect_error(ErrorKind::kConfig, wrong.parts, [&] { detect_launch(wrong.environment); });
}

TEST(Launch, FirstHostOfANodeList) {
  const std::pair<const char*, const char*> kLists[] = {
      {"node7", "node7"},
      {"node[001-003,007],gpu5", "node001"},
      {"a,b", "a"},
      {"n[1-2]x[3-4]-ib", "n1x3-ib"},
      {"rack[12]n[9,11]", "rack12n9"},
  };
  for (const auto& [list, first] : kLists) EXPECT_EQ(first_host(list, "V"), first);
  for (const char* list : {"", "n[1-2", "n[]", "n[-3]", ",a", "a b", "a[1]\n"})
    expect_error(ErrorKind::kConfig, {"V: "}, [&] { first_host(list, "V"); });
}

TEST(Launch, EachLocalRankHasItsGpu) {
  Launch l = detect_launch(kTorchrun);  // local rank 1
  EXPECT_EQ(device_of_rank("auto", l, 4), "cuda:1");
  EXPECT_EQ(device_of_rank("cuda", l, 2), "cuda:1");
  EXPECT_EQ(device_of_rank("auto", l, 1), "cuda:0") << "the launcher shows each process its own";
  EXPECT_EQ(device_of_rank("auto", l, 0), "auto");
  EXPECT_EQ(device_of_rank("cpu", l, 4), "cpu");
  EXPECT_EQ(device_of_rank("cuda:3", l, 4), "cuda:3");
  l.local_rank = 3;
  expect_error(ErrorKind::kUsage, {"local rank 3", "2 are visible"}, [&] { device_of_rank("auto", l, 2); });
}

TEST(Launch, AsJson) {
  const Json json = to_json(detect_launch(kTorchrun));
  EXPECT_EQ(json["schema"], "specdec.distill_launch/1");
  EXPECT_EQ(json["rank"], 5);
  EXPECT_EQ(json["world_size"], 8);
  EXPECT_EQ(json["variables"]["TORCHELASTIC_RUN_ID"], "job7");
  EXPECT_FALSE(json["variables"].contains("PATH"));
  EXPECT_NE(launch_text(detect_launch(kTorchrun)).find("5 of 8"), std::string::npos);
}

}  // namespace
}  // namespace specdec::parallel
