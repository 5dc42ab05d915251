// The teacher: what the target answers at the learnt positions of rows. A target in this process computes its logits
// without gradients (ModelTeacher); others come from files (hidden_teacher.h, label_teacher.h).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "distill/rows/batcher.h"
#include "distill/teacher/divided_target.h"
#include "engine/forward/forward.h"
#include "engine/weights/weights.h"

namespace specdec::distill {

// Returns a model's hidden states after the last layer at batch.rows, and at the branches' rows after them
// (branched_hidden()): [R, E]. The observer is called during the pass over the texts, if there are no branches.
at::Tensor hidden_rows(const model::Decoder& decoder, const Batch& batch, const model::HiddenObserver& observer = {});

// A function that computes the logits of entries [begin, end) of Batch::rows: [end - begin, V] in any float dtype, up
// to a constant per row. If the batch has branches, their rows follow. row_logits returns such a function for
// `decoder`, which must outlive the function. With `divided`, `decoder` is only the head of that target.
using RowLogits = std::function<at::Tensor(int64_t begin, int64_t end)>;
RowLogits row_logits(const model::Decoder& decoder, const Batch& batch, DividedTarget* divided = nullptr);

// Logits of the draft at some learnt rows: [n, V], or [n, D] if the draft proposes only the tokens `kept` (LossInput).
struct DraftRows {
  at::Tensor logits, kept;
};
// A function that returns the target's logits of entries [begin, end) of Batch::rows, and of the branches' rows after
// them: [end - begin, V] in any float dtype, up to a constant per row. `draft` are the draft's logits at the same rows;
// a teacher that knows only part of a distribution completes it by them.
using TargetRows = std::function<at::Tensor(int64_t begin, int64_t end, const DraftRows& draft)>;

class Teacher {
 public:
  virtual ~Teacher() = default;
  // Returns the logits at batch.rows; the batch must be of the rows that the teacher was made for. The teacher must
  // outlive the result. Only ModelTeacher answers branches.
  virtual TargetRows rows(const Batch& batch) = 0;
  // Returns the probability, [R] fp32 on the CPU, that the teacher knows only as a sum over several tokens; undefined
  // if it knows every probability.
  virtual at::Tensor rest(const Batch&) { return {}; }
  // Returns the model that answers each row once, when the row is first needed; null if no model does, or if it answers
  // a row every time.
  virtual const model::Decoder* first_answers() const { return nullptr; }
};

// Makes teachers for sets of rows.
class TeacherSource {
 public:
  virtual ~TeacherSource() = default;
  // `rows` must outlive the teacher and stay as they are, but rows may be removed from the end. A teacher that would
  // answer a row again and again may keep up to `cache_bytes` of answers.
  virtual std::unique_ptr<Teacher> teach(const std::vector<TokenRow>& rows, int64_t cache_bytes) const = 0;
  // Returns whether it can answer this row.
  virtual bool has(const TokenRow& row) const = 0;
};

// The target in this process, or divided among the ranks of a team.
class ModelTeacher final : public Teacher {
 public:
  // `rows` must outlive the teacher; row indices of batches refer to them. If the fp16 log-probabilities at all learnt
  // positions fit in `cache_bytes`, each row is computed once, together with fixed neighbours. The values of a row then
  // do not depend on which batch needs it first, so a resumed run sees the same bits. With `divided`, `target` is only
  // the head of that target.
  ModelTeacher(std::shared_ptr<const model::Decoder> target, const std::vector<TokenRow>& rows, int64_t cache_bytes,
               std::shared_ptr<DividedTarget> divided = nullptr);

  bool cached() const { return cached_; }
  TargetRows rows(const Batch& batch) override;
  const model::Decoder* first_answers() const override { return cached_ ? target_.get() : nullptr; }

 private:
  void fill(size_t group);
  const at::Tensor& answers_of(size_t row);

  std::shared_ptr<const model::Decoder> target_;
  std::shared_ptr<DividedTarget> divided_;
  const std::vector<TokenRow>& rows_;
  bool cached_ = false;
  std::vector<std::vector<size_t>> groups_;
  std::vector<size_t> group_of_;
  // kept_[i]: log-probabilities [R, V] fp16 of row i at its learnt positions; undefined until its group is computed.
  std::vector<at::Tensor> kept_;
};

class ModelSource final : public TeacherSource {
 public:
  explicit ModelSource(std::shared_ptr<const model::Decoder> target, std::shared_ptr<DividedTarget> divided = nullptr)
      : target_(std::move(target)), divided_(std::move(divided)) {}
  std::unique_ptr<Teacher> teach(const std::vector<TokenRow>& rows, int64_t cache_bytes) const override {
    return std::make_unique<ModelTeacher>(target_, rows, cache_bytes, divided_);
  }
  bool has(const TokenRow&) const override { return true; }

 private:
  std::shared_ptr<const model::Decoder> target_;
  std::shared_ptr<DividedTarget> divided_;
};

}  // namespace specdec::distill
