#include "cli/engine/comparison_text.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "cli/progress_line.h"

namespace specdec::cli {

namespace {

double real_of(const Json& value) { return value.is_number() ? value.get<double>() : NAN; }

std::string row_of_draft(const Json& d, int width) {
  const Json& a = d.at("acceptance");
  const int k = d.at("k");
  const double v = k > 0 ? real_of(d.at("verify_cost").at(std::to_string(k))) : NAN;
  return format("%-*s  %10lld  %.4f [%.4f, %.4f]  %2d  %6.2f  %6.3f  %6.3f  %5.2f [%.2f, %.2f]  %s%s\n", width,
                d.at("draft").get<std::string>().c_str(), static_cast<long long>(d.at("parameters").get<int64_t>()),
                real_of(a.at("value")), real_of(a.at("ci").at(0)), real_of(a.at("ci").at(1)), k,
                real_of(d.at("length")), real_of(d.at("draft_cost")), v, real_of(d.at("speedup")),
                real_of(d.at("ci").at(0)), real_of(d.at("ci").at(1)),
                readable_duration(real_of(d.at("seconds"))).c_str(),
                d.at("ties_with_first").get<bool>() ? "  not distinguishable from the first" : "");
}

}  // namespace

std::string comparison_text(const Json& c, const std::string& out) {
  int width = 5;
  for (const Json& d : c.at("drafts"))
    width = std::max(width, static_cast<int>(d.at("draft").get_ref<const std::string&>().size()));
  std::string text =
      "verdict      " + c.at("verdict").get<std::string>() + ": " + c.at("reason").get<std::string>() + "\n";
  text += format("%-*s  parameters  acceptance               K  length       c       v  speed-up            trained\n",
                 width, "draft");
  for (const Json& d : c.at("drafts")) text += row_of_draft(d, width);
  text += "comparison   " + out + "/comparison.json\nnext         " + c.at("next_reason").get<std::string>() + "\n";
  if (c.contains("next")) text += "             " + c["next"].get<std::string>() + "\n";
  return text;
}

}  // namespace specdec::cli
