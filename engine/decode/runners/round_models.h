// The interfaces through which a round on a device (device_round.h) uses its target and its drafts. Runners of real
// models implement them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "engine/cache/kv_cache.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/decode/runners/draft_shape.h"
#include "engine/forward/device_upload.h"
#include "engine/forward/forward.h"
#include "engine/forward/forward_cuda.h"
#include "engine/forward/pass_graphs.h"

namespace specdec::decode {

class RoundTarget {
 public:
  virtual ~RoundTarget() = default;
  virtual void set_rounds(std::shared_ptr<RoundRunner> rounds) = 0;  // for CausalModel::rounds()
  virtual const model::Decoder& decoder() const = 0;
  virtual model::KvCache& cache(SequenceId sequence) = 0;
  virtual const model::BlockPool& pool() const = 0;
  // Returns the graphs of decoder(), which are made at the first call, or null if our own kernels do not run its
  // passes.
  virtual model::PassGraphs* graphs() = 0;
  // Makes room in the caches for a pass over these extensions.
  virtual void reserve(std::span<const Extension> extensions) = 0;
  // Starts the pass over these extensions and returns its logits (CudaPass::run()). The upload must have been sent
  // before. The tokens that drafts choose need to be in the upload only, not in `extensions`. The caches' lengths stay
  // as they are.
  virtual at::Tensor run_pass(const model::CudaPass& pass, const model::DeviceUpload& upload,
                              std::span<const Extension> extensions) = 0;
  // Adds the tokens of the last pass, all of which are known now, to the caches, and keeps for the drafts the hidden
  // states that they will read.
  virtual void commit_pass(std::span<const Extension> extensions) = 0;
};

class RoundDraft {
 public:
  virtual ~RoundDraft() = default;

  // One sequence's part in the passes of a round.
  struct Reader {
    SequenceId sequence = -1;
    std::span<const int32_t> text;
    const DraftShape* shape = nullptr;  // of what the round drafts
  };
  // One pass of some sequences. At first its rows are unread tokens of the text, and the last row of each sequence has
  // logits; later they are the nodes of one level, which all have logits.
  class Pass {
   public:
    virtual ~Pass() = default;
    virtual int64_t num_rows() const = 0;
    // Adds the pass to an upload. `live` is the number of sequences that have a part in the pass; it may change in the
    // upload until the pass is run. With `may_rest`, the pass does nothing if the number is 0 by then.
    virtual void describe(model::DeviceUpload& upload, int32_t live, bool may_rest) = 0;
    virtual size_t live_place() const = 0;  // where `live` is in the upload, an int32_t
    // Returns where in the upload the token id of a row is, an int32_t.
    virtual size_t id_place(int64_t row) const = 0;
    // Starts the pass and writes its logits as fp32 rows [rows with logits, V], with −inf for what the draft never
    // proposes.
    virtual void run(const model::DeviceUpload& upload, const at::Tensor& out) = 0;
  };

  // Returns whether our own kernels run the draft's passes on this device, and whether the draft has all that a round
  // of this sequence reads.
  virtual bool takes(SequenceId sequence, std::span<const int32_t> text, at::Device device) = 0;
  // Returns how many tokens of the text the first pass reads.
  virtual int64_t unread(SequenceId sequence, std::span<const int32_t> text) = 0;
  virtual model::KvCache& cache(SequenceId sequence) = 0;
  virtual const model::BlockPool& pool() const = 0;
  // Makes the pass in which all `readers` read their next tokens. At depth 0 these are the unread tokens of the text,
  // and the cache gets room for them and for all that the round drafts. At depth d these are the nodes of level d − 1,
  // whose tokens are not known yet. `before` is the pass of depth - 1: it has these readers in the same order, and
  // maybe others between them. The passes must outlive the round.
  virtual std::unique_ptr<Pass> make_pass(std::span<const Reader> readers, int depth, Pass* before) = 0;
  // Leaves in the sequence what the passes of a step leave there: the text and `nodes`, the first ones of the shape, or
  // the text alone if the draft reads hidden states. `first` is the round's first pass, and `i` the sequence's place in
  // it.
  virtual void commit(const Reader& reader, std::span<const int32_t> nodes, Pass& first, size_t i) = 0;
};

}  // namespace specdec::decode
