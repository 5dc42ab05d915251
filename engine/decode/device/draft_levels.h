// Plans and runs the draft passes of a round on a device. A level is one pass of one draft over all sequences that use
// this draft, followed by drawing.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/decode/round/round.h"
#include "engine/decode/runners/draft_shape.h"
#include "engine/decode/runners/round_models.h"
#include "engine/forward/device_upload.h"
#include "engine/kernels/cuda.h"

namespace specdec::decode {

// Returns the randomness of a slot that satisfies wants_only_tokens().
inline SeededRandomness& seeded(const RoundSlot& slot) { return dynamic_cast<SeededRandomness&>(*slot.randomness); }

// Returns the sampling options of a slot in the form that the kernels read.
kernels::SampleRow sample_row(const RoundSlot& slot);

class DraftLevels {
 public:
  // The slots of a round, with their draft shapes and the number of each slot's first node in the round.
  struct Slots {
    std::span<const RoundSlot> slots;
    std::span<const DraftShape> shapes;
    std::span<const int32_t> first_node;
  };
  struct Level {
    RoundDraft* draft = nullptr;
    CausalModel* drafter = nullptr;
    std::unique_ptr<RoundDraft::Pass> pass;
    std::vector<size_t> slots;
    std::vector<int32_t> rows;  // for each slot, its first row among those with logits
    int depth = 0;
    bool reads = false;     // whether some sequence reads more than two tokens of its text
    bool may_rest = false;  // whether the pass is skipped if all its sequences have stopped
    // True if the kernel sample() must run before draft(), because some rows have several children.
    bool samples_first = false;
    int32_t num_rows = 0;           // number of rows with logits
    int64_t q_row = 0;              // index of the level's first row among the rows of all levels
    size_t samples = 0, draws = 0;  // offsets in the upload of the inputs of the kernels sample() and draft()
  };
  // Device addresses of the results. The first three arrays have one element per node (kernels::DraftPass), the last
  // two one per row.
  struct Results {
    kernels::VerifyNode* nodes;
    int32_t* tokens;
    float* confidences;
    int32_t *sampled, *choices;
  };

  DraftLevels(const kernels::CudaLibrary& library, int32_t device) : library_(library), device_(device) {}

  // Reserves room in the drafts' caches and plans the passes.
  void plan(const Slots& slots);
  const std::vector<Level>& levels() const { return levels_; }
  int64_t num_rows() const { return num_rows_; }  // number of rows with logits in all levels
  // Sets q_row of each drafted node to the row that the node's token is drawn from, or to −1 for greedy sampling.
  void set_rows(const Slots& slots, std::span<kernels::VerifyNode> nodes) const;
  // describe_passes() adds the passes to the upload. Call describe_draws() next: it adds the drawing after each pass. A
  // drawn token is also written into the upload at the offset id_place(slot, node), where the target reads it. The
  // offsets of neighbouring nodes are adjacent.
  void describe_passes(model::DeviceUpload& upload);
  using IdPlace = std::function<size_t(size_t slot, int32_t node)>;
  void describe_draws(const Slots& slots, model::DeviceUpload& upload, const IdPlace& id_place);
  // Runs a level: one draft pass and the drawing of its tokens. q: fp32 rows [num_rows(), V].
  void run(const Level& level, const model::DeviceUpload& upload, const at::Tensor& q, const Results& results) const;

 private:
  void plan_draft(const Slots& slots, CausalModel& drafter);
  kernels::DraftRow draft_row(const Slots& slots, const Level& level, size_t slot, int32_t row) const;

  const kernels::CudaLibrary& library_;
  int32_t device_;
  std::vector<Level> levels_;
  int64_t num_rows_ = 0;
};

}  // namespace specdec::decode
