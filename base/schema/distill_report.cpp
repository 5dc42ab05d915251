#include "base/schema/distill_report.h"

#include <cmath>

namespace specdec {

namespace {

constexpr ListRule kFewParts{65536, true};
constexpr size_t kMostDepths = 1024;

}  // namespace

std::optional<double> if_finite(double x) { return std::isfinite(x) ? std::optional(x) : std::nullopt; }

DistillFigure distill_figure(const Estimate& e) {
  return {if_finite(e.value), if_finite(e.ci.low), if_finite(e.ci.high)};
}

void visit_figure(Fields& f, DistillFigure& figure) {
  f("value", figure.value);
  f.row("ci", "[low, high]", [&](Fields& ci) {
    ci("low", figure.low);
    ci("high", figure.high);
  });
}

void visit_fields(Fields& f, DistillFigure& figure) {
  f.type("ForecastFigure", "A figure with its 95 % interval; null where it is not known or infinite.");
  visit_figure(f, figure);
}

void visit_fields(Fields& f, DistillPart& part) {
  f("name", part.name);
  f("before", part.before);
  f("after", part.after);
  f("requests", part.requests, kAnyCount);
  f("conversations", part.conversations, kAnyCount);
  f("tokens", part.tokens, kAnyCount);
}

namespace {

void visit_scores(Fields& f, DistillScores& scores, bool by_acceptance) {
  const auto visit_side = [&](const char* key, DistillSide& side) {
    f.group(key, [&](Fields& part) {
      visit_figure(part, side.figure);
      if (by_acceptance) {
        part({"tokens", "Acceptance over tokens instead of requests."}, side.tokens);
        part("greedy_agreement", side.greedy_agreement);
      }
      part({"cross_entropy", "Nats per token."}, side.cross_entropy);
    });
  };
  visit_side("before", scores.before);
  visit_side("after", scores.after);
  f({"difference", "After minus before, paired by request; positive is better."}, scores.difference);
  f("requests", scores.requests, kAnyCount);
  f("conversations", scores.conversations, kAnyCount);
  f("tokens", scores.tokens, kAnyCount);
  f({"level", "Of all intervals."}, scores.level, {0, 1});
  if (!by_acceptance) return;
  f.number_if({"rest", "The target's probability that is known only as a sum; acceptance is at most what is stated."},
              scores.certain.has_value(), scores.rest);
  f(if_any("certain", "The least difference, with any rest."), scores.certain);
  f(defaulted("by_position"), scores.by_position, kFewParts);
  f(defaulted("by_domain"), scores.by_domain, kFewParts);
}

// Visits the scores under the name of what they are.
void visit_scores(Fields& f, std::optional<DistillScores>& scores) {
  for (const bool by_acceptance : {true, false}) {
    bool present = scores && scores->by_acceptance == by_acceptance;
    f.group_if(by_acceptance ? "acceptance" : "cross_entropy", present, [&](Fields& part) {
      if (!scores) scores.emplace();
      visit_scores(part, *scores, by_acceptance);
    });
    if (f.reads() && present) scores->by_acceptance = by_acceptance;
  }
}

}  // namespace

void visit_fields(Fields& f, DistillTraining::Measured& measured) {
  f("step", measured.step, kAnyCount);
  f("score", measured.score);
  f("loss", measured.loss);
  f.json(if_any("ci"), measured.ci,
         {{"type", "array"}, {"items", {{"type", {"number", "null"}}}}, {"minItems", 2}, {"maxItems", 2}});
}

void visit_fields(Fields& f, DistillTraining& t) {
  f("steps", t.steps, kAnyCount);
  f("tokens", t.tokens, kAnyCount);
  f("seconds", t.seconds);
  f("tokens_per_second", t.tokens_per_second);
  f("last_loss", t.last_loss);
  f("skipped_steps", t.skipped_steps, kAnyCount);
  f("roll_backs", t.roll_backs, kAnyCount);
  f({"kept_step", "The step of the checkpoint that is the draft."}, t.kept_step, kAnyCount);
  f.group({"selection", "The measurements that chose the checkpoint."}, [&](Fields& selection) {
    selection("by", t.selected_by);
    selection("requests", t.selection_requests, kAnyCount);
    selection("conversations", t.selection_conversations, kAnyCount);
    selection("measured", t.measured);
  });
  f(if_any("deeper_acceptance", "With roll-outs: acceptance at draft positions 2, 3 and so on."), t.deeper_acceptance,
    kAnyNumber, kMostDepths);
  f.json(if_any("chosen", "Settings that the options left open."), t.chosen);
  f.json(if_any("layers", "The search for the layers of prune:N."), t.layers);
}

void visit_fields(Fields& f, DistillCost& cost) {
  f("seconds", cost.seconds);
  f("training_seconds", cost.training_seconds);
  f("training_tokens", cost.training_tokens, kAnyCount);
  f("tokens_per_second", cost.tokens_per_second);
  f("device", cost.device);
  f("processes", cost.processes, kAnyCount);
  f("dtype", cost.dtype);
  f("dtype_reason", cost.dtype_reason);
  f({"teacher_share", "The target's share of the training time; null: not known."}, cost.teacher_share);
}

void visit_fields(Fields& f, DraftOutput& draft) {
  f.type("DraftOutput", "The draft that was written.");
  f("path", draft.path);
  f("id", draft.id);
}

void visit_head(Fields& f, DistillHead& head) {
  f("started", head.started);
  f("seconds", head.seconds);
  f("tool_version", head.tool_version);
  f.json("inputs", head.inputs);
  f("reason", head.reason);
  f.json("options", head.options);
}

void visit_fields(Fields& f, DistillReport& r) {
  f.type("DistillResult",
         "The outcome of a training run (result.json). Acceptance is measured where the target has weights, else cross "
         "entropy.");
  f.schema("distill", DistillReport::kVersion);
  visit_verdict(f, r.verdict, {Verdict::kImproved, Verdict::kNoSignificantGain, Verdict::kInconclusive});
  visit_head(f, r);
  f.json("data", r.data);
  visit_scores(f, r.scores);
  f(if_any("training"), r.training);
  f(if_any("cost"), r.cost);
  f(defaulted("next"), r.next);
  f(defaulted("next_reason"), r.next_reason);
  f.json(if_any("draft_vocab"), r.draft_vocab);
  f(if_any("draft"), r.draft);
}

}  // namespace specdec
