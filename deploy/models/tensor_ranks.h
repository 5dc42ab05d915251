// Tensor parallelism: several processes ("ranks") of this machine each hold a shard of one target
// (engine/config/shard.h). This process is rank 0, which decodes and holds the draft. Rank 0 starts the other ranks,
// which run the same program. Over a socket, rank 0 tells each of them which passes to run on its shard.
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
  int threads = 0;     // CPU threads of each rank; 0: the machine's cores divided by the number of ranks
  bool exact = false;  // true: a token's bits do not depend on the size of the pass (Decoder::exact)
  // Program and first arguments with which the other ranks are started. The descriptor number of a socket is appended,
  // and the program must pass it to run_tensor_rank().
  std::vector<std::string> command;
  // Called from another thread if a rank is lost while this process waits or is idle. The function must end the
  // process.
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
  at::Device device() const;  // rank 0's device, valid after load()
  // Loads rank 0's shard while the other ranks load theirs, and waits for all. Throws what load_shard_for_decoding()
  // throws, and the error that ended another rank.
  std::shared_ptr<const model::Decoder> load();
  // Makes a runner of the shard that load() returned, and has the other ranks make theirs. Each rank's KV cache gets
  // `cache_bytes`, as for decode::make_model_runner().
  std::unique_ptr<decode::CausalModel> make_runner(std::shared_ptr<const model::Decoder> share, int64_t cache_bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Runs a rank other than 0. Returns true when rank 0 tells it to end. Returns false if rank 0 or another rank is lost;
// rank 0 reports that loss. Throws what loading and the passes throw, with this rank's number in the message. `on_lost`
// is as in TensorRankOptions.
bool run_tensor_rank(int socket, const std::function<void(const Error&)>& on_lost);

}  // namespace specdec::deploy
