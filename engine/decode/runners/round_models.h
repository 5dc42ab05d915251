// The interfaces through which a round on a device (device_round.h) uses its target and its drafts. The runners of real
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
  virtual void set_rounds(std::shared_ptr<RoundRunner> rounds) = 0;  // sets CausalModel::rounds()
  virtual const model::Decoder& decoder() const = 0;
  virtual model::KvCache& cache(SequenceId sequence) = 0;
  virtual const model::BlockPool& pool() const = 0;
  // Returns the CUDA graphs of decoder(); the first call creates them. Returns null if our own kernels do not support
  // the decoder's passes.
  virtual model::PassGraphs* graphs() = 0;
  // Reserves room in the caches for a pass over these extensions.
  virtual void reserve(std::span<const Extension> extensions) = 0;
  // Starts the pass over these extensions and returns its logits (CudaPass::run()). The upload must have been sent
  // before. The pass reads the token ids from the upload, so drafted tokens need not be in `extensions`. The lengths
  // of the caches do not change.
  virtual at::Tensor run_pass(const model::CudaPass& pass, const model::DeviceUpload& upload,
                              std::span<const Extension> extensions) = 0;
  // Commits the tokens of the last pass, all of which are known now, to the caches, and stores the hidden states that
  // drafts will read.
  virtual void commit_pass(std::span<const Extension> extensions) = 0;
};

class RoundDraft {
 public:
  virtual ~RoundDraft() = default;

  // One sequence in the draft passes of a round (one draft and verification of a batch).
  struct Reader {
    SequenceId sequence = -1;
    std::span<const int32_t> text;
    const DraftShape* shape = nullptr;  // shape of the round's draft
  };
  // One draft pass over several sequences. In the first pass, the rows are unread tokens of the texts, and the last row
  // of each sequence has logits. In later passes, the rows are the nodes of one level, and all have logits.
  class Pass {
   public:
    virtual ~Pass() = default;
    virtual int64_t num_rows() const = 0;
    // Adds the pass to an upload. `live` is the number of sequences that take part in the pass; kernels may change the
    // number in the upload before the pass runs. With `may_rest`, the pass does nothing if the number is then 0.
    virtual void describe(model::DeviceUpload& upload, int32_t live, bool may_rest) = 0;
    virtual size_t live_place() const = 0;  // offset in the upload of `live`, an int32_t
    // Returns the offset in the upload of a row's token id, an int32_t.
    virtual size_t id_place(int64_t row) const = 0;
    // Starts the pass and writes its logits as fp32 rows [rows with logits, V], with −inf for tokens that the draft
    // never proposes.
    virtual void run(const model::DeviceUpload& upload, const at::Tensor& out) = 0;
  };

  // Returns whether a sequence's drafting can run on this device: our own kernels must support the draft's passes
  // there, and the draft must have all states and caches that the passes read.
  virtual bool takes(SequenceId sequence, std::span<const int32_t> text, at::Device device) = 0;
  // Returns the number of tokens of the text that the draft has not read yet, all of which its first pass must read.
  virtual int64_t unread(SequenceId sequence, std::span<const int32_t> text) = 0;
  virtual model::KvCache& cache(SequenceId sequence) = 0;
  virtual const model::BlockPool& pool() const = 0;
  // Creates the pass in which all `readers` read their next tokens. At depth 0 the next tokens are the unread tokens of
  // the text, and the call also reserves room in the cache for them and for all nodes of the round. At depth d > 0 the
  // next tokens are the nodes of level d − 1, whose token ids are not known yet. `before` is the pass at depth − 1; its
  // readers include `readers`, in the same order. The passes must outlive the round.
  virtual std::unique_ptr<Pass> make_pass(std::span<const Reader> readers, int depth, Pass* before) = 0;
  // Commits to the sequence's cache the text and `nodes` (the first nodes of the shape), or only the text if the draft
  // reads hidden states. `first` is the round's first pass, and `i` the index of the sequence in it.
  virtual void commit(const Reader& reader, std::span<const int32_t> nodes, Pass& first, size_t i) = 0;
};

}  // namespace specdec::decode
