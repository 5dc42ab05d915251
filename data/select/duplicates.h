// Finds records that duplicate an earlier one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/schema/traffic_record.h"
#include "data/select/key_set.h"
#include "data/select/near_duplicates.h"

namespace specdec::data {

// Writes to `out` everything that must be equal for two records to be duplicates: the content, with each run of white
// space as one space and with separators between the parts, and the facts that decide which tokens are learnt (the
// tools, the template's variables, ChatMessage::unlearnt, whether the answer was cut).
void collapse_content(const TrafficRecord& record, std::string& out);

class Duplicates {
 public:
  // `near` is the similarity from which a record counts as a duplicate; 0 = only equal records do.
  Duplicates(const std::filesystem::path& directory, bool equal, double near);

  enum class Verdict { kNew, kEqual, kNear };
  Verdict look_up(const TrafficRecord& record, const std::string& collapsed);

 private:
  bool equal_;
  KeySet seen_;
  std::optional<NearDuplicates> near_;
};

}  // namespace specdec::data
