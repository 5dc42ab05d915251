#include "base/schema/reject_record.h"

#include <algorithm>
#include <cmath>

namespace specdec {

namespace {

constexpr double kLowest = -100;  // means "no mass", because JSON has no infinity

int64_t thousandths(double logprob) { return std::llround(std::max(logprob, kLowest) * 1000); }

int64_t number(const Json& list, size_t i, int64_t low, int64_t high, const std::string& where) {
  return json_int(Json{{"rejects", list.at(i)}}, "rejects", {low, high}, where, ErrorKind::kData);
}

double logprob(const Json& list, size_t i, const std::string& where) {
  return static_cast<double>(number(list, i, static_cast<int64_t>(kLowest) * 1000, 0, where)) / 1000;
}

void require_list(const Json& list, size_t items, const std::string& where) {
  if (!list.is_array() || list.size() != items)
    throw Error(ErrorKind::kData,
                where + ": rejects: expected lists of " + std::to_string(items) + " items, found " + list.type_name());
}

}  // namespace

std::string to_line(const RejectRecord& r) {
  Json rejects = Json::array();
  for (const RejectRecord::Reject& x : r.rejects) {
    Json top = Json::array();
    for (const auto& [id, value] : x.top) top.push_back({id, thousandths(value)});
    rejects.push_back({x.position, x.drafted, thousandths(x.logprob), x.next, top});
  }
  return canonical_json({{"schema", "specdec.rejects/" + std::to_string(RejectRecord::kVersion)},
                         {"id", r.id},
                         {"conversation", r.conversation},
                         {"t", r.time},
                         {"T", std::round(r.temperature * 1000) / 1000},
                         {"q", r.draft},
                         {"p", r.target},
                         {"rejects", rejects}});
}

RejectRecord reject_record_from_line(const std::string& line, const std::string& where) {
  const Json object = parse_json(line, where);
  require_schema(object, "rejects", RejectRecord::kVersion, where);
  RejectRecord r;
  r.id = json_string(object, "id", where, ErrorKind::kData);
  r.conversation = json_string(object, "conversation", where, ErrorKind::kData);
  r.time = json_int(object, "t", {0, kMaxCount}, where, ErrorKind::kData);
  r.temperature = json_double(object, "T", {0, 10}, where, ErrorKind::kData);
  r.draft = json_string(object, "q", where, ErrorKind::kData);
  r.target = json_string(object, "p", where, ErrorKind::kData);
  int64_t least = 0;
  for (const Json& item : json_array(object, "rejects", RejectRecord::kMaxRejects, where, ErrorKind::kData)) {
    require_list(item, 5, where);
    RejectRecord::Reject x;
    x.position = number(item, 0, least, kMaxCount, where);
    least = x.position + 1;
    x.drafted = static_cast<int32_t>(number(item, 1, 0, INT32_MAX, where));
    x.logprob = logprob(item, 2, where);
    x.next = static_cast<int32_t>(number(item, 3, 0, INT32_MAX, where));
    const Json likeliest = {{"rejects", item.at(4)}};
    for (const Json& entry : json_array(likeliest, "rejects", RejectRecord::kMaxTop, where, ErrorKind::kData)) {
      require_list(entry, 2, where);
      x.top.emplace_back(static_cast<int32_t>(number(entry, 0, 0, INT32_MAX, where)), logprob(entry, 1, where));
    }
    r.rejects.push_back(std::move(x));
  }
  return r;
}

}  // namespace specdec
