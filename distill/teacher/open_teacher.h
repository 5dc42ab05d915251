// Opens a teacher that is not in this process, and leaves out the rows that it does not answer.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "base/fingerprint.h"
#include "base/json.h"
#include "distill/settings/options.h"
#include "distill/teacher/teacher.h"

namespace specdec::distill {

struct TeacherInput {
  const DistillOptions& options;  // with parse_teacher(options.teacher) as `spec`
  const TeacherSpec& spec;
  at::Device device;
  std::string data_digest, tokenizer_digest;
  std::string target_id;  // "" = not known: the target's directory has no weights
};
struct OpenedTeacher {
  std::unique_ptr<TeacherSource> source;
  std::optional<Fingerprint> target;  // the target that answered, if the files name it
  Json record;                        // what run.json keeps of it, so that a resumed run has the same
};
// Opens the teacher's files and checks them against `train` and `held_out`. `step` is called repeatedly and may throw.
// Throws Error(kData) for files that do not fit, and what model::load_head throws.
OpenedTeacher open_teacher_files(const TeacherInput& input, const PreparedRows& train, const PreparedRows& held_out,
                                 const std::function<void(double share)>& step);

// Removes the rows without an answer, logs how many there are and names the first. Returns their number.
int64_t drop_unanswered(const TeacherSource& source, const std::string& split, PreparedRows& rows);

}  // namespace specdec::distill
