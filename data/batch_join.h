// Puts the two rows of a batch together, in whatever order and from whatever files they come. The first of them waits
// on disk; memory is 40 bytes for each row that waits.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "data/row_parser.h"
#include "data/scratch_file.h"

namespace specdec::data {

// Where a row stands, for its reject.
struct RowPlace {
  uint32_t source = 0;  // index of the file
  int64_t number = 0;   // of the line in it
};

class BatchJoin {
 public:
  explicit BatchJoin(const std::filesystem::path& directory) : waiting_rows_(directory) {}

  // The record once both rows are there; nothing while one waits. A custom_id is unique within one batch only: the same
  // half coming again while the first waits makes the id ambiguous, and all its rows are refused (ambiguous_id).
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
