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
    bool reads = false;          // more than two tokens of a text
    bool may_rest = false;       // the pass does nothing if all of its sequences have stopped before
    bool samples_first = false;  // distributions are made before tokens are drawn, because rows have several children
    int32_t num_rows = 0;        // that have logits
    int64_t q_row = 0;           // the first of them among those of all levels
    size_t samples = 0, draws = 0;  // places in the upload
  };
  // Where the results are, on the device: of each node (kernels::DraftPass), and of each row.
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
  int64_t num_rows() const { return num_rows_; }  // that have logits, of all levels
  // Names the row that each drafted node is drawn from.
  void set_rows(const Slots& slots, std::span<kernels::VerifyNode> nodes) const;
  // Adds the passes to the upload, and then what is drawn after them. Tokens also go to where the target reads them:
  // id_place() of the slot and node in the upload. Ids of neighbouring nodes lie side by side.
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
