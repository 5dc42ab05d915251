// Wraps a teacher and measures the time spent in it, for the report on the cost of a run.
#pragma once

#include <memory>

#include "base/clock.h"
#include "distill/teacher/teacher.h"

namespace specdec::distill {

// Forwards to the wrapped teacher. Only the duration of the calls is measured, so the result is meaningless on a GPU,
// which still computes after a call has returned. The clock must outlive the object.
class TimedTeacher final : public Teacher {
 public:
  TimedTeacher(std::unique_ptr<Teacher> inside, const Clock& clock) : inside_(std::move(inside)), clock_(clock) {}

  TargetRows rows(const Batch& batch) override;
  at::Tensor rest(const Batch& batch) override { return inside_->rest(batch); }
  const model::Decoder* first_answers() const override { return inside_->first_answers(); }

  double seconds() const { return seconds_; }  // seconds in the teacher since construction or the last restart()
  void restart() { seconds_ = 0; }

 private:
  std::unique_ptr<Teacher> inside_;
  const Clock& clock_;
  double seconds_ = 0;
};

}  // namespace specdec::distill
