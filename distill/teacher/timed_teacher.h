// Measures how long a teacher takes, for the report on what a run costs.
#pragma once

#include <memory>

#include "base/clock.h"
#include "distill/teacher/teacher.h"

namespace specdec::distill {

// Answers as the teacher inside does. The time is that of the calls, so it is meaningless for a device that works while
// the calls have returned already. The clock must outlive the object.
class TimedTeacher final : public Teacher {
 public:
  TimedTeacher(std::unique_ptr<Teacher> inside, const Clock& clock) : inside_(std::move(inside)), clock_(clock) {}

  TargetRows rows(const Batch& batch) override;
  at::Tensor rest(const Batch& batch) override { return inside_->rest(batch); }
  const model::Decoder* first_answers() const override { return inside_->first_answers(); }

  double seconds() const { return seconds_; }  // since the beginning or the last restart()
  void restart() { seconds_ = 0; }

 private:
  std::unique_ptr<Teacher> inside_;
  const Clock& clock_;
  double seconds_ = 0;
};

}  // namespace specdec::distill
