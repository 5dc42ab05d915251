// Manages the directory of a run: locks it, writes run.json, and cleans up if the run fails before its first
// checkpoint.
#pragma once

#include <filesystem>
#include <optional>

#include "base/file_lock.h"
#include "base/json.h"

namespace specdec::distill {

// The file in RUN with the target's answers to the held-out prompts (contexts.h).
inline constexpr const char* kContextsFile = "contexts.json";
// A file with this path in RUN shows that RUN belongs to `distill --forecast` (forecast.h), which trains on samples of
// the data. The directories of these runs are siblings of this file.
inline constexpr const char* kForecastRunFile = "forecast/run.json";
// A file with this path in RUN shows that RUN belongs to `distill --compare` (comparison.h), which trains several kinds
// of drafts.
inline constexpr const char* kComparisonRunFile = "comparison/run.json";

// Makes the directory RUN and locks it. If the run fails before its first checkpoint, the destructor removes RUN: there
// is nothing to resume, and a corrected command can then use the same RUN. If RUN was an empty directory before, only
// its content is removed. With --forecast, which trains several times, the first training counts.
class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path run);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  // If RUN has a run that has begun, changes nothing and throws Error(kUsage) if that run's options or inputs differ
  // from the arguments. Otherwise removes the files of an earlier run that ended before its first checkpoint, and
  // writes run.json.
  void enter(const Json& options, const Json& inputs) const;

  // Returns whether RUN has a training run with a checkpoint or a result; the runs that --forecast or --compare made in
  // RUN count, too. A run that ended before its first checkpoint does not count: --resume starts it anew, with any
  // options.
  static bool has_begun(const std::filesystem::path& run);
  // Returns the options in run.json of a run that has begun, else null. Throws Error(kData) if run.json is malformed.
  static Json options_of(const std::filesystem::path& run);
  void keep() { is_new_ = false; }

 private:
  std::filesystem::path run_;
  bool existed_, is_new_ = false;
  std::optional<FileLock> lock_;
};

}  // namespace specdec::distill
