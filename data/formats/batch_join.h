// Joins the request row and the response row of each batch item, in whatever order and from whatever files they come.
// The row that comes first waits on disk; in memory, each waiting row takes a map entry of 48 bytes.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "data/formats/row_parser.h"
#include "data/select/scratch_file.h"

namespace specdec::data {

// The place of a row in the sources, as rejects.jsonl names it.
struct RowPlace {
  uint32_t source = 0;  // index of the file among all sources
  int64_t number = 0;   // RawRecord::number (data/sources/record_reader.h)
};

class BatchJoin {
 public:
  explicit BatchJoin(const std::filesystem::path& directory) : waiting_rows_(directory) {}

  // Returns nothing for the first row of a pair, and the joined record (or why it is rejected) for the second row. A
  // custom_id is unique only within one batch. If two requests with the same custom_id arrive before a response (or two
  // responses before a request), all rows with this custom_id are refused (ambiguous_id).
  std::optional<ParsedRow> add(const BatchHalf& half, std::string_view row, RowPlace place, const RowOptions& options);

  // Calls f(place, why) for each request row without a response row and each response row without a request row, in the
  // order of their places.
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
