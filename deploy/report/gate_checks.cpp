#include "deploy/report/gate_checks.h"

#include "base/format.h"
#include "base/schema/gate_summary.h"

namespace specdec::deploy {

namespace {

using State = Check::State;

std::string with_interval(const std::string& name, const Estimate& e) {
  return name + " " + decimals(e.value) + " " + interval_text(e.ci);
}
std::string with_signed_interval(const std::string& name, const Estimate& e) {
  return name + " " + signed_decimals(e.value) + " " + signed_interval_text(e.ci);
}

// Returns advice for an undecided check of acceptance: use more of the existing requests, or provide more data.
std::string more_requests(const Check& check, const ValidationReport& r) {
  if (check.state != State::kOpen) return "";
  return r.requests_available > r.alpha.n ? "; give more requests (--max-requests 0 takes all)"
                                          : "; all requests were used: ingest more data";
}

Check acceptance_check(const ValidationReport& r) {
  if (r.alpha.n == 0) return {"", "acceptance", State::kNotMeasured, Verdict::kFail, "acceptance"};
  Check c{"", "acceptance", side(r.alpha, r.floor), Verdict::kFail, with_interval("acceptance", r.alpha)};
  c.text += format(c.state == State::kPass   ? " is above the floor %.2f"
                   : c.state == State::kFail ? " is below the floor %.2f"
                                             : " is not decided: its interval contains the floor %.2f",
                   r.floor) +
            more_requests(c, r);
  c.figure = {"acceptance", "", r.alpha.value, r.alpha.ci, r.floor};
  if (c.state == State::kPass && r.alpha.ci.low > r.goal) c.text += format(" and the goal %.2f", r.goal);
  return c;
}

Check segment_check(const ValidationReport& r, const SegmentFigure& s) {
  Check c{s.name, "acceptance", State::kNotJudged, Verdict::kFail, with_interval("acceptance of " + s.name, s.alpha)};
  if (!s.floor) {
    c.text += format(" has no floor (%lld requests)", static_cast<long long>(s.alpha.n));
    return c;
  }
  c.state = side(s.alpha, *s.floor);
  c.text += format(c.state == State::kPass   ? " is above its floor %.2f"
                   : c.state == State::kFail ? " is below its floor %.2f"
                                             : " is not decided: its interval contains its floor %.2f",
                   *s.floor) +
            more_requests(c, r);
  c.figure = {"acceptance", s.name, s.alpha.value, s.alpha.ci, *s.floor};
  return c;
}

// Judges the speed-up. On a busy machine the measured times decide nothing, because other processes may have slowed
// plain decoding more than speculation, or the reverse.
Check speed_check(const ValidationReport& r) {
  Check c{"", "speed-up", State::kNotMeasured, Verdict::kNotWorthIt, "speed"};
  if (!r.has_speed || r.speedup.n == 0) return c;
  c.figure = {"speed-up", "", r.speedup.value, r.speedup.ci, 1};
  c.text = with_interval("speed-up at batch 1", r.speedup);
  c.state = State::kOpen;
  if (r.machine && r.machine->busy) {
    c.text += " decides nothing, because the machine was busy: " + others_of(*r.machine) +
              " while it was timed; run it again on an idle machine";
  } else if (r.speedup.n < kLeastUnits) {
    c.text += format(" is of %lld prompts only, and %lld are needed: give --speed-prompts 8",
                     static_cast<long long>(r.speedup.n), static_cast<long long>(kLeastUnits));
  } else if (r.speedup.ci.high <= 1) {
    c.state = State::kFail;
    c.text += ": decoding without the draft is as fast or faster";
  } else if (r.speedup.ci.low > 1) {
    c.state = State::kPass;
  } else {
    c.text += format(" is not decided: its interval contains 1; give more prompts (--speed-prompts %lld)",
                     static_cast<long long>(prompts_to_decide(r.speedup)));
  }
  return c;
}

void add_baseline(const ValidationReport& r, std::vector<Check>& out) {
  const ValidationReport::Baseline& b = *r.baseline;
  const std::string other = b.draft_id.empty() ? "the baseline" : "the serving draft";
  Check all{"", "against " + other, State::kNotJudged, Verdict::kFail,
            with_signed_interval("acceptance less that of " + other, b.difference)};
  if (b.min_gain) {
    all.state = side(b.difference, *b.min_gain);
    all.text += format(all.state == State::kPass   ? " is above %+.3f"
                       : all.state == State::kFail ? " is below %+.3f"
                                                   : " is not decided: its interval contains %+.3f",
                       *b.min_gain) +
                more_requests(all, r);
    all.figure = {all.name, "", b.difference.value, b.difference.ci, *b.min_gain};
  }
  out.push_back(all);
  for (const auto& s : b.segments) {
    Check c{s.name, all.name, State::kNotJudged, Verdict::kFail,
            with_signed_interval("acceptance of " + s.name + " less that of " + other, s.difference)};
    if (b.min_gain && s.judged) {  // fails only if the whole interval is below -kSegmentLoss; no gain is required
      c.state = s.difference.ci.high < -ValidationReport::kSegmentLoss ? State::kFail : State::kPass;
      c.text += format(c.state == State::kPass ? " is not surely below %+.2f" : " is below %+.2f",
                       -ValidationReport::kSegmentLoss);
      c.figure = {c.name, s.name, s.difference.value, s.difference.ci, -ValidationReport::kSegmentLoss};
    }
    out.push_back(c);
  }
}

}  // namespace

const char* to_string(Check::State state) {
  constexpr const char* kNames[] = {"pass", "fail", "inconclusive", "not measured", "not judged"};
  return kNames[static_cast<int>(state)];
}

std::string others_of(const MachineUse& m) {
  if (!m.known()) return "";
  return format("other processes used %.1f of %d CPUs", m.others, m.cpus) +
         (m.stolen > 0.05 ? format(" (%.1f of them other machines or a limit of this cgroup)", m.stolen) : "");
}

std::string machine_line(const MachineUse& m) {
  const std::string runs =
      format("%lld timed runs", static_cast<long long>(m.runs)) +
      (m.disturbed ? format(", %lld of them disturbed by other processes", static_cast<long long>(m.disturbed)) : "") +
      (m.disagreeing ? format(", %lld repeated because they disagreed", static_cast<long long>(m.disagreeing)) : "");
  return (m.known() ? others_of(m) : "what other processes used cannot be read here") + "; " + runs;
}

State side(const Estimate& e, double floor) {
  return e.ci.high < floor ? State::kFail : e.ci.low > floor ? State::kPass : State::kOpen;
}

std::vector<Check> checks_of(const ValidationReport& r) {
  if (r.verdict == Verdict::kStale) return {{"", "binding", State::kFail, Verdict::kStale, r.reason}};
  std::vector<Check> out;
  Check lossless{"", "lossless", State::kNotMeasured, Verdict::kNotLossless, "lossless"};
  if (r.has_lossless) {
    const bool greedy = r.differences == 0, sampled = r.sampled_p_value > kSampledLimit;
    lossless.state = greedy && sampled ? State::kPass : State::kFail;
    lossless.text =
        !greedy    ? format("greedy output differs from plain decoding on %lld of %lld prompts, and not at a near-tie",
                            static_cast<long long>(r.differences), static_cast<long long>(r.greedy_prompts))
        : !sampled ? format("sampled output is not distributed as the target's: p = %.2g, limit %.0e",
                            r.sampled_p_value, kSampledLimit)
                   : format("greedy output of %lld prompts is that of plain decoding, sampled output has p = %.2g",
                            static_cast<long long>(r.greedy_prompts), r.sampled_p_value);
  }
  out.push_back(lossless);
  out.push_back(acceptance_check(r));
  for (const SegmentFigure& s : r.segments) out.push_back(segment_check(r, s));
  if (r.baseline) add_baseline(r, out);
  out.push_back(speed_check(r));
  return out;
}

}  // namespace specdec::deploy
