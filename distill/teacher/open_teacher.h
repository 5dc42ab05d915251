// Opens a teacher that reads files (labels or hidden states), and drops the rows that the files do not cover.
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
  const DistillOptions& options;  // `spec` is parse_teacher(options.teacher)
  const TeacherSpec& spec;
  at::Device device;
  std::string data_digest, tokenizer_digest;
  std::string target_id;  // "" = not known: the target's directory has no weights
};
struct OpenedTeacher {
  std::unique_ptr<TeacherSource> source;
  std::optional<Fingerprint> target;  // fingerprint of the target that computed the files, if they name it
  Json record;  // written to run.json, so that a resumed run can check that it has the same teacher
};
// Opens the teacher's files and checks them against `train` and `held_out`. `step` is called repeatedly and may throw.
// Throws Error(kData) for damaged files or files of other rows, and what model::load_head throws.
OpenedTeacher open_teacher_files(const TeacherInput& input, const PreparedRows& train, const PreparedRows& held_out,
                                 const std::function<void(double share)>& step);

// Removes the rows for which `source` has no answer, logs how many there are and the id of the first one, and returns
// their number.
int64_t drop_unanswered(const TeacherSource& source, const std::string& split, PreparedRows& rows);

}  // namespace specdec::distill
