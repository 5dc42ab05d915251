// A teacher gives the target's logits at the positions of rows that are in the loss. ModelTeacher computes the logits
// without gradients with a target in this process; other teachers read files (hidden_teacher.h, label_teacher.h).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "distill/rows/batcher.h"
#include "distill/teacher/as_served.h"
#include "distill/teacher/divided_target.h"
#include "engine/forward/forward.h"
#include "engine/weights/weights.h"

namespace specdec::distill {

// Returns a model's hidden states after the last layer at batch.rows: [R, E]. If the batch has branches (tokens that
// the draft generated), the rows of the branches follow (branched_hidden()), and the observer is not called.
at::Tensor hidden_rows(const model::Decoder& decoder, const Batch& batch, const model::HiddenObserver& observer = {});

// RowLogits is a function that returns the logits of entries [begin, end) of Batch::rows: [end - begin, V] in any float
// dtype, up to a constant per row. If the batch has branches (tokens that the draft generated), the rows of the
// branches follow those of Batch::rows. row_logits() returns such a function for `decoder`, which must outlive the
// function. With `divided`, `decoder` has only the final norm and output head of the divided target. With `served`, the
// texts run as that target serves; a batch with branches does not.
using RowLogits = std::function<at::Tensor(int64_t begin, int64_t end)>;
RowLogits row_logits(const model::Decoder& decoder, const Batch& batch, DividedTarget* divided = nullptr,
                     ServedTarget* served = nullptr);

// Logits of the draft at n rows: [n, V], or [n, D] if the draft's vocabulary is the D tokens `kept` (LossInput::kept).
struct DraftRows {
  at::Tensor logits, kept;
};
// A function that returns the target's logits of entries [begin, end) of Batch::rows, followed by the rows of the
// branches (tokens that the draft generated): [end - begin, V] in any float dtype, up to a constant per row. `draft`
// has the draft's logits at the same rows; a teacher with top-k labels computes the logits of all other tokens from
// `draft`.
using TargetRows = std::function<at::Tensor(int64_t begin, int64_t end, const DraftRows& draft)>;

class Teacher {
 public:
  virtual ~Teacher() = default;
  // Returns a function that computes the logits at batch.rows. The batch must consist of rows that the teacher was made
  // for, and the teacher must outlive the function. Only ModelTeacher supports batches with branches (tokens that the
  // draft generated).
  virtual TargetRows rows(const Batch& batch) = 0;
  // Returns for each row the total probability of the tokens whose own probabilities the teacher does not know (all but
  // the top k), [R] fp32 on the CPU; undefined if the teacher knows the probability of every token.
  virtual at::Tensor rest(const Batch&) { return {}; }
  // If a row's logits are computed at their first use and then cached, returns the model that computes them. Returns
  // null if nothing is cached.
  virtual const model::Decoder* first_answers() const { return nullptr; }
};

// Makes teachers for sets of rows.
class TeacherSource {
 public:
  virtual ~TeacherSource() = default;
  // `rows` must outlive the teacher and must not change, but rows may be removed from the end. The teacher may cache up
  // to `cache_bytes` of logits.
  virtual std::unique_ptr<Teacher> teach(const std::vector<TokenRow>& rows, int64_t cache_bytes) const = 0;
  // Returns whether a teacher of this source can answer `row`.
  virtual bool has(const TokenRow& row) const = 0;
};

// A teacher that runs the target in this process, or a target that several ranks hold together.
class ModelTeacher final : public Teacher {
 public:
  // `rows` must outlive the teacher; Batch::row_index refers to `rows`. With `divided`, `target` has only the final
  // norm and output head of the divided target. If the fp16 log-probabilities at all positions in the loss fit in
  // `cache_bytes`, each row is computed once and cached. A row is always computed in the same group of rows, so its
  // values do not depend on which batch needs it first, and a resumed run gets bit-identical values.
  // `served`, if not null, is that of `target`, and several teachers may share it.
  ModelTeacher(std::shared_ptr<const model::Decoder> target, const std::vector<TokenRow>& rows, int64_t cache_bytes,
               std::shared_ptr<DividedTarget> divided = nullptr, std::shared_ptr<ServedTarget> served = nullptr);

  bool cached() const { return cached_; }
  TargetRows rows(const Batch& batch) override;
  const model::Decoder* first_answers() const override { return cached_ ? target_.get() : nullptr; }

 private:
  void fill(size_t group);
  const at::Tensor& answers_of(size_t row);

  std::shared_ptr<const model::Decoder> target_;
  std::shared_ptr<DividedTarget> divided_;
  std::shared_ptr<ServedTarget> served_;  // null: texts run side by side
  const std::vector<TokenRow>& rows_;
  bool cached_ = false;
  std::vector<std::vector<size_t>> groups_;
  std::vector<size_t> group_of_;
  // kept_[i]: log-probabilities [R, V] fp16 of row i at its positions in the loss; undefined until they are computed.
  std::vector<at::Tensor> kept_;
};

class ModelSource final : public TeacherSource {
 public:
  explicit ModelSource(std::shared_ptr<const model::Decoder> target, std::shared_ptr<DividedTarget> divided = nullptr)
      : target_(std::move(target)),
        divided_(std::move(divided)),
        served_(divided_ ? nullptr : ServedTarget::of(target_)) {}
  std::unique_ptr<Teacher> teach(const std::vector<TokenRow>& rows, int64_t cache_bytes) const override {
    return std::make_unique<ModelTeacher>(target_, rows, cache_bytes, divided_, served_);
  }
  bool has(const TokenRow&) const override { return true; }

 private:
  std::shared_ptr<const model::Decoder> target_;
  std::shared_ptr<DividedTarget> divided_;
  std::shared_ptr<ServedTarget> served_;
};

}  // namespace specdec::distill
