// The processes of this machine that hold one target together ("ranks", engine/config/shard.h). This process is rank 0,
// decodes, and holds the draft. It starts the others, which are this program again, and tells each over a socket what
// to do with its share.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/weights/weights.h"

namespace specdec::deploy {

struct TensorRankOptions {
  int ranks = 2;
  std::filesystem::path target;
  std::string device = "auto";  // auto, cpu or cuda: rank r takes the r-th GPU that is visible
  at::ScalarType dtype = at::kFloat;
  int threads = 0;  // of each rank on a CPU; 0: its share of the cores
  // The program of the other ranks and its first arguments. The descriptor number of a socket is added as the last
  // argument, and the program must pass that number to run_tensor_rank().
  std::vector<std::string> command;
  // Called from another thread if a rank is lost and this process does not end by itself. It must end the process.
  std::function<void(const Error&)> on_lost;
};

class TensorRanks {
 public:
  // Starts the other ranks and connects to them. Throws Error(kNetwork) if one does not connect.
  explicit TensorRanks(const TensorRankOptions& options);
  ~TensorRanks();  // ends the other ranks
  TensorRanks(const TensorRanks&) = delete;
  TensorRanks& operator=(const TensorRanks&) = delete;

  int count() const;
  at::Device device() const;  // of this rank, once it is loaded
  // Loads this rank's share, while the others load theirs, and waits for them. Throws what load_shard() throws, and the
  // error that ended another rank.
  std::shared_ptr<const model::Decoder> load();
  // Makes a runner of the share that load() returned, and of the others' shares. cache_bytes as for
  // decode::make_model_runner(), of each rank.
  std::unique_ptr<decode::CausalModel> make_runner(std::shared_ptr<const model::Decoder> share, int64_t cache_bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Does the work of a rank other than 0, until rank 0 ends it. Returns true then, and false if rank 0 or another rank is
// lost; rank 0 reports the loss of another rank. Throws what loading and the passes throw, with the rank's number in
// the message. `on_lost` is as in TensorRankOptions.
bool run_tensor_rank(int socket, const std::function<void(const Error&)>& on_lost);

}  // namespace specdec::deploy
