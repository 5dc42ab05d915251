#include "data/formats/batch_join.h"

#include <algorithm>

#include "data/select/key_set.h"

namespace specdec::data {

namespace {

const Rejected kAmbiguous = {"ambiguous_id",
                             "custom_id comes twice before its other half: ingest one batch's files at a time"};

}  // namespace

std::optional<ParsedRow> BatchJoin::add(const BatchHalf& half, std::string_view row, RowPlace place,
                                        const RowOptions& options) {
  const uint64_t key = hash_key(half.custom_id);
  const auto it = waiting_.find(key);
  if (it == waiting_.end()) {
    waiting_[key] = {waiting_rows_.append(row), static_cast<uint32_t>(row.size()), place, half.is_request, false};
    return {};
  }
  Waiting& first = it->second;
  if (first.ambiguous || first.is_request == half.is_request) {
    first.ambiguous = true;
    return kAmbiguous;
  }
  std::string other(first.size, '\0');
  waiting_rows_.read(first.offset, other);
  waiting_.erase(it);
  return half.is_request ? parse_batch_pair(row, other, options) : parse_batch_pair(other, row, options);
}

void BatchJoin::refuse_waiting(const std::function<void(const RowPlace&, const Rejected&)>& f) const {
  std::vector<const Waiting*> left;
  for (const auto& [key, w] : waiting_) left.push_back(&w);
  std::sort(left.begin(), left.end(), [](const Waiting* a, const Waiting* b) {
    return std::pair(a->place.source, a->place.number) < std::pair(b->place.source, b->place.number);
  });
  for (const Waiting* w : left)
    f(w->place, w->ambiguous    ? kAmbiguous
                : w->is_request ? Rejected{"no_answer", "no result with this custom_id"}
                                : Rejected{"no_request", "no request with this custom_id"});
}

}  // namespace specdec::data
