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
// The file in RUN that marks a forecast (forecast.h); the directories of its runs are siblings of this file.
inline constexpr const char* kForecastRunFile = "forecast/run.json";
inline constexpr const char* kComparisonRunFile = "comparison/run.json";  // marks a comparison (comparison.h)

// Makes RUN and locks it. If the run (for a forecast: its first run) fails before its first checkpoint, the destructor
// removes RUN, because there is nothing to resume and a corrected command can then use the same RUN. If RUN was an
// empty directory before, the destructor removes only its content.
class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path run);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  // If RUN has a run that has begun, changes nothing and throws Error(kUsage) if that run's options or inputs differ
  // from the arguments. Otherwise writes run.json, after it removed the files of an earlier run that ended before its
  // first checkpoint.
  void enter(const Json& options, const Json& inputs) const;

  // Returns whether RUN has a run (or a study's runs) with a checkpoint or a result. A run that ended before its first
  // checkpoint does not count: --resume starts it anew, with any options.
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
