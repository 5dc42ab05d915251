#include "base/schema/reject_record.h"

#include <algorithm>
#include <cmath>

namespace specdec {

namespace {

constexpr double kLowest = -100;  // lowest log-probability written; stands for minus infinity, which JSON does not have

int64_t thousandths(double logprob) { return std::llround(std::max(logprob, kLowest) * 1000); }

// A log-probability is written in thousandths.
void visit_logprob(Fields& f, const char* key, double& logprob) {
  int64_t written = f.reads() ? 0 : thousandths(logprob);
  f(key, written, {static_cast<int64_t>(kLowest) * 1000, 0});
  if (f.reads()) logprob = static_cast<double>(written) / 1000;
}

}  // namespace

void visit_fields(Fields& f, RejectRecord::Likely& token) {
  f("id", token.first, {0, INT32_MAX});
  visit_logprob(f, "logprob", token.second);
}

void visit_fields(Fields& f, RejectRecord::Reject& x) {
  f("position", x.position, kAnyCount);
  f("drafted", x.drafted, {0, INT32_MAX});
  visit_logprob(f, "logprob", x.logprob);
  f("next", x.next, {0, INT32_MAX});
  f.rows("likeliest", x.top, "[id, logprob]", RejectRecord::kMaxTop);
}

void visit_fields(Fields& f, RejectRecord& r) {
  f.schema("rejects", RejectRecord::kVersion);
  f("id", r.id);
  f("conversation", r.conversation);
  f("t", r.time, kAnyCount);
  double temperature = std::round(r.temperature * 1000) / 1000;
  f("T", temperature, {0, 10});
  if (f.reads()) r.temperature = temperature;
  f("q", r.draft);
  f("p", r.target);
  f.rows("rejects", r.rejects, "[position, drafted, logprob, next, likeliest]", RejectRecord::kMaxRejects);
  for (size_t i = 1; i < r.rejects.size(); ++i)
    if (r.rejects[i].position <= r.rejects[i - 1].position) f.refuse("rejects: expected rising positions");
}

std::string to_line(const RejectRecord& r) { return canonical_json(json_of(r)); }

RejectRecord reject_record_from_line(const std::string& line, const std::string& where) {
  return read_fields<RejectRecord>(parse_json(line, where), where);
}

}  // namespace specdec
