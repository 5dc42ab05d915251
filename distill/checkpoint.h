// Training checkpoints: RUN/checkpoints/step-XXXXXXXX/{config.json, model.safetensors, optimizer.safetensors,
// state.json}, published in one rename, then `latest` names it. state.json carries the SHA-256 of the other files and
// of itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "distill/optimizer.h"
#include "engine/model/weights.h"

namespace specdec::distill {

struct Checkpoint {
  int64_t step = 0;
  std::filesystem::path directory;
  Json state;  // what save() was given
};

class CheckpointStore {
 public:
  static constexpr int kVersion = 1;  // state.json: schema "specdec.checkpoint/1"
  static constexpr size_t kKeep = 3;  // newest ones that stay, besides the best

  explicit CheckpointStore(std::filesystem::path directory);  // RUN/checkpoints; made if missing

  // Publishes step `step` (replacing a damaged one of that name), moves `latest`, then removes all but the newest kKeep
  // and `best_step`. Throws Error(kIo).
  void save(int64_t step, int64_t best_step, const model::Decoder& draft, const AdamW& optimizer, const Json& state);

  // The newest checkpoint whose digests hold; damaged ones are named in the log. (A directory newer than `latest` is
  // one whose save was killed between its two renames: as good.) Nothing if there is none at all; Error(kData) if all
  // are damaged.
  std::optional<Checkpoint> newest_good() const;
  // One step with its digests checked; nothing if it is missing or damaged.
  std::optional<Checkpoint> open(int64_t step) const;

  // Reads the weights into the tensors of `draft` and the moments into `optimizer`. Throws Error(kData) if they do not
  // fit.
  static void restore(const Checkpoint& checkpoint, model::Decoder& draft, AdamW* optimizer);

 private:
  std::vector<int64_t> steps() const;  // ascending
  std::filesystem::path directory_;
};

}  // namespace specdec::distill
