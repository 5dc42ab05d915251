#include "cli/engine/comparison_text.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "cli/progress_line.h"

namespace specdec::cli {

namespace {

std::string row_of_draft(const ComparedDraft& d, int width) {
  const DistillFigure& a = d.acceptance;
  return format("%-*s  %10lld  %.4f [%.4f, %.4f]  %2d  %6.2f  %6.3f  %6.3f  %5.2f [%.2f, %.2f]  %s%s\n", width,
                d.draft.c_str(), static_cast<long long>(d.parameters), a.value.value_or(NAN), a.low.value_or(NAN),
                a.high.value_or(NAN), d.k, d.length, d.draft_cost, d.k > 0 ? d.verify_cost.at(d.k) : NAN, d.speedup,
                d.ci.low, d.ci.high, readable_duration(d.seconds).c_str(),
                d.ties_with_first ? "  not distinguishable from the first" : "");
}

}  // namespace

std::string comparison_text(const ComparisonReport& c, const std::string& out) {
  int width = 5;
  for (const ComparedDraft& d : c.drafts) width = std::max(width, static_cast<int>(d.draft.size()));
  std::string text = "verdict      " + std::string(to_string(c.verdict)) + ": " + c.reason + "\n";
  text += format("%-*s  parameters  acceptance               K  length       c       v  speed-up            trained\n",
                 width, "draft");
  for (const ComparedDraft& d : c.drafts) text += row_of_draft(d, width);
  text += "comparison   " + out + "/comparison.json\nnext         " + c.next_reason + "\n";
  if (!c.next.empty()) text += "             " + c.next + "\n";
  return text;
}

}  // namespace specdec::cli
