// Training checkpoints: RUN/checkpoints/step-XXXXXXXX/{config.json, model.safetensors, optimizer.safetensors,
// state.json}. A checkpoint is written to a temporary directory and renamed; then its name is written to the file
// `latest`. state.json holds the SHA-256 of each other file, and that of its own content without this digest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "distill/gradient/optimizer.h"
#include "distill/gradient/trained_draft.h"

namespace specdec::distill {

struct Checkpoint {
  int64_t step = 0;
  std::filesystem::path directory;
  Json state;  // the `state` given to save()
};

class CheckpointStore {
 public:
  static constexpr int kVersion = 1;  // state.json: schema "specdec.checkpoint/1"
  static constexpr size_t kKeep = 3;  // number of newest checkpoints to keep, in addition to the best one

  explicit CheckpointStore(std::filesystem::path directory);  // RUN/checkpoints; created if it is missing

  // Writes the checkpoint of `step` (and replaces a damaged one of that step), updates `latest`, then removes all
  // checkpoints except the newest kKeep and that of `best_step`. Throws Error(kIo). Only rank 0 calls save(). If the
  // optimizer state is divided among the ranks, the other ranks call optimizer.visit_state({}) at the same time.
  void save(int64_t step, int64_t best_step, const TrainedDraft& draft, const AdamW& optimizer, const Json& state);

  // Returns the newest checkpoint whose digests are right, and logs newer damaged ones. The result may be newer than
  // the checkpoint that `latest` names, if save() was killed before it updated `latest`. Returns nothing if there is no
  // checkpoint; throws Error(kData) if all are damaged.
  std::optional<Checkpoint> newest_good() const;
  // Opens the checkpoint of one step and checks its digests; returns nothing if it is missing or damaged.
  std::optional<Checkpoint> open(int64_t step) const;

  // Reads the weights into the tensors of `draft`. Throws Error(kData) if a tensor is missing or has another shape.
  static void restore(const Checkpoint& checkpoint, const TrainedDraft& draft);
  // Reads the optimizer state, which may have been written by any number of ranks. Every rank calls this function, but
  // only rank 0 reads the checkpoint, so the other ranks may pass an empty one. Throws Error(kData) as restore() does.
  static void restore(const Checkpoint& checkpoint, AdamW& optimizer);

 private:
  std::vector<int64_t> steps() const;  // steps of all checkpoints, ascending
  std::filesystem::path directory_;
};

}  // namespace specdec::distill
