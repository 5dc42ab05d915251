#include "distill/teacher/timed_teacher.h"

namespace specdec::distill {

TargetRows TimedTeacher::rows(const Batch& batch) {
  const double begin = clock_.seconds();
  TargetRows answers = inside_->rows(batch);
  seconds_ += clock_.seconds() - begin;
  return [this, answers = std::move(answers)](int64_t first, int64_t last, const DraftRows& draft) {
    const double start = clock_.seconds();
    at::Tensor out = answers(first, last, draft);
    seconds_ += clock_.seconds() - start;
    return out;
  };
}

}  // namespace specdec::distill
