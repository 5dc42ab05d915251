// The passes of the drafts in a round on a device, level by level, with the drawing after each. A level is one pass of
// one draft, for all sequences that draft with it.
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

// Returns the randomness of a slot that wants only tokens.
inline SeededRandomness& seeded(const RoundSlot& slot) { return dynamic_cast<SeededRandomness&>(*slot.randomness); }

// Returns the options under which a slot's tokens are drawn.
kernels::SampleRow sample_row(const RoundSlot& slot);

class DraftLevels {
 public:
  // The slots of a round, with their shapes and the number of each slot's first node in the round.
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
    std::vector<int32_t> rows;  // by slot: its first row among those that have logits
    int depth = 0;
    bool reads = false;          // a sequence reads more than two tokens of its text
    bool may_rest = false;       // the pass does nothing if all of its sequences have stopped before
    bool samples_first = false;  // distributions are made before tokens are drawn, because rows have several children
    int32_t num_rows = 0;        // rows that have logits
    int64_t q_row = 0;           // the first of these rows among those of all levels
    size_t samples = 0, draws = 0;  // places in the upload
  };
  // Addresses of the results on the device. The first three have an element for each node (kernels::DraftPass), the
  // last two an element for each row.
  struct Results {
    kernels::VerifyNode* nodes;
    int32_t* tokens;
    float* confidences;
    int32_t *sampled, *choices;
  };

  DraftLevels(const kernels::CudaLibrary& library, int32_t device) : library_(library), device_(device) {}

  // Makes room in the drafts' caches and plans the passes.
  void plan(const Slots& slots);
  const std::vector<Level>& levels() const { return levels_; }
  int64_t num_rows() const { return num_rows_; }  // rows of all levels that have logits
  // Sets q_row of each drafted node to the row that it is drawn from, or to −1 if its slot is greedy.
  void set_rows(const Slots& slots, std::span<kernels::VerifyNode> nodes) const;
  // describe_passes() adds the passes to the upload. describe_draws(), called after it, adds what is drawn after each
  // pass. A drawn token is also written to the place in the upload where the target reads it; id_place() returns this
  // place for a slot and a node. The places of neighbouring nodes lie side by side.
  void describe_passes(model::DeviceUpload& upload);
  using IdPlace = std::function<size_t(size_t slot, int32_t node)>;
  void describe_draws(const Slots& slots, model::DeviceUpload& upload, const IdPlace& id_place);
  // Runs a level. q: fp32 rows [num_rows(), V].
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
