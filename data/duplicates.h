// Which records are the same as an earlier one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/schema/traffic_record.h"
#include "data/key_set.h"
#include "data/near_duplicates.h"

namespace specdec::data {

// The content with runs of white space as one space and the parts kept apart: equal strings mean equal records. Reuses
// `out`.
void collapse_content(const TrafficRecord& record, std::string& out);

class Duplicates {
 public:
  // near: similarity from which a record counts as a duplicate, 0 = only equal ones.
  Duplicates(const std::filesystem::path& directory, bool equal, double near);

  enum class Verdict { kNew, kEqual, kNear };
  Verdict look_up(const TrafficRecord& record, const std::string& collapsed);

 private:
  bool equal_;
  KeySet seen_;
  std::optional<NearDuplicates> near_;
};

}  // namespace specdec::data
