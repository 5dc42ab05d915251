// Joins the request row and the response row of each batch item, in whatever order and from whatever files they come.
// The first row of a pair waits on disk; each waiting row takes 40 bytes of memory.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "data/row_parser.h"
#include "data/scratch_file.h"

namespace specdec::data {

// The place of a row in the sources, which its reject names.
struct RowPlace {
  uint32_t source = 0;  // index of the file
  int64_t number = 0;   // line number in the file
};

class BatchJoin {
 public:
  explicit BatchJoin(const std::filesystem::path& directory) : waiting_rows_(directory) {}

  // Returns the record when both rows have arrived, and nothing while the first one waits. A custom_id is unique within
  // one batch only: if the same half comes again while the first one waits, the id is ambiguous and all its rows are
  // refused (ambiguous_id).
  std::optional<ParsedRow> add(const BatchHalf& half, std::string_view row, RowPlace place, const RowOptions& options);

  // Calls f(place, why) for each row whose other half never came, in the order of their places.
  void refuse_waiting(const std::function<void(const RowPlace&, const Rejected&)>& f) const;

 private:
  struct Waiting {
    uint64_t offset = 0;
    uint32_t size = 0;
    RowPlace place;
    bool is_request = false, ambiguous = false;
  };
  ScratchFile waiting_rows_;
  std::unordered_map<uint64_t, Waiting> waiting_;
};

}  // namespace specdec::data
