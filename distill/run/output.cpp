#include "distill/run/output.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/file.h"
#include "base/format.h"
#include "base/schema/binding.h"
#include "base/shell.h"
#include "distill/run/preparation.h"
#include "distill/settings/repeat_flags.h"
#include "distill/settings/time_plan.h"

namespace specdec::distill {

namespace {

// The files of a Hugging Face directory that belong to the tokenizer, and the generation settings.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer.model",
                                           "chat_template.jinja",
                                           "chat_template.json",
                                           "generation_config.json"};

Json number(double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); }

void collect(const Json& a, const Json& b, const std::string& path, std::string& out) {
  if (a.is_object() && b.is_object()) {
    Json keys = a;
    keys.update(b);
    for (const auto& [key, unused] : keys.items())
      collect(a.value(key, Json(nullptr)), b.value(key, Json(nullptr)), path.empty() ? key : path + "." + key, out);
  } else if (a != b) {
    out += (out.empty() ? "" : ", ") + path;
  }
}

// Returns whether the time limit was too short to measure enough conversations for a verdict, though the data has
// enough.
bool lacks_time(const Outcome& o) {
  return o.asked.time_limit_seconds > 0 && o.verdict_conversations < kMinVerdictConversations &&
         o.held_out_conversations >= kMinVerdictConversations;
}

// Returns the factor by which a run must be longer to reach a verdict; 0 if a longer run would not help.
double longer_for_a_verdict(const Outcome& o) {
  double factor = 0;
  if (o.held_out_conversations < kMinVerdictConversations) return 0;  // more data is needed, not more time
  if (o.taught_little && o.asked.time_limit_seconds > 0 && o.chosen.contains("step_seconds"))
    factor = seconds_for_steps(o.chosen.at("step_seconds"), kWantedSteps) / o.asked.time_limit_seconds;
  else if (o.taught_little)
    factor = static_cast<double>(kWantedSteps) / static_cast<double>(std::max<int64_t>(1, o.training.steps));
  if (lacks_time(o)) {
    const double judged = static_cast<double>(std::max<int64_t>(1, o.verdict_conversations)),
                 seconds = 1.5 * o.asked.time_limit_seconds * static_cast<double>(kMinVerdictConversations) / judged;
    factor = std::max(factor, usual_duration(seconds) / o.asked.time_limit_seconds);
  }
  return factor;
}

std::string gain(const Outcome& o) {
  return format("%s %.4f -> %.4f on held-out rows; gain %+.4f, 95 %% interval [%+.4f, %+.4f]",
                o.by_acceptance ? "acceptance" : "cross entropy", o.judgement.before.value, o.judgement.after.value,
                o.judgement.difference.value, o.judgement.difference.ci.low, o.judgement.difference.ci.high);
}

std::string few_conversations(const Outcome& o) {
  const auto judged = static_cast<long long>(o.verdict_conversations),
             least = static_cast<long long>(kMinVerdictConversations);
  if (lacks_time(o))
    return format(
        "the time limit of %s let %lld of %lld held-out conversations judge the draft, at least %lld are needed",
        duration_text(o.asked.time_limit_seconds).c_str(), judged, static_cast<long long>(o.held_out_conversations),
        least);
  return format("%lld held-out conversations judge the draft, at least %lld are needed (%lld in all)", judged, least,
                static_cast<long long>(kMinHeldOutConversations));
}

std::string reason(const Outcome& o) {
  if (o.judgement.verdict != Verdict::kInconclusive) return gain(o);
  const double longer = longer_for_a_verdict(o);
  const std::string limit =
      longer > 0 && o.asked.time_limit_seconds > 0
          ? ": --time-limit " + duration_text(longer_run(o.asked, longer).time_limit_seconds) + " gives a verdict"
          : "";
  if (o.verdict_conversations < kMinVerdictConversations) return few_conversations(o) + limit;
  if (o.taught_little)
    return format("%lld steps teach nothing (%s)", static_cast<long long>(o.training.steps), gain(o).c_str()) + limit;
  return format(
      "acceptance at most %.4f -> %.4f on held-out rows, but %.4f of the target's probability is known only as a sum, "
      "and the gain could be due to it: at least %+.4f, 95 %% interval [%+.4f, %+.4f]",
      o.judgement.before.value, o.judgement.after.value, o.after.rest, o.judgement.certain.value,
      o.judgement.certain.ci.low, o.judgement.certain.ci.high);
}

std::string command_of(DistillOptions o, double factor) {
  o.out += "-longer";
  return shell_words(repeated_command(longer_run(o, factor)));
}

}  // namespace

NextStep next_step(Verdict verdict, const DistillOptions& o, const RunEnd& end) {
  if (verdict == Verdict::kImproved) {
    std::vector<std::string> words = {"specdec",        "validate", "--target", o.target, "--draft",
                                      o.out + "/draft", "--data",   o.data,     "--out",  o.out + "/gate"};
    const std::vector<std::string> flags = flags_of_gate(o);
    words.insert(words.end(), flags.begin(), flags.end());
    return {"the gate measures the draft against its floor and its speed", shell_words(words)};
  }
  if (verdict == Verdict::kNoSignificantGain)
    return {end.rising ? "the draft was still getting better when the run ended: train it longer"
                       : "the draft stopped getting better before the run ended: more data or more layers help more "
                         "than this longer run",
            command_of(o, 4)};
  if (end.longer > 0) return {"a run of this length gives a verdict", command_of(o, end.longer)};
  if (end.partial)
    return {"the target's answers must be known more closely for a verdict: as hidden states, or with more tokens",
            shell_words(
                {"specdec", "data", "label", o.data, "--target", o.target, "--out", o.data + "-labels", "--hidden"})};
  return {"a verdict needs at least " + std::to_string(kMinHeldOutConversations) +
              " held-out conversations: ingest more traffic or hold more of it out",
          shell_words({"specdec", "data", "ingest", "LOGS", "--target", o.target, "--out", o.data + "-more",
                       "--holdout", "0.2"})};
}

Json describe(const DistillOptions& o) {
  Json out = {{"draft", o.draft},
              {"draft_vocab", o.draft_vocab},
              {"loss", o.loss},
              {"lk_eta", o.lk_eta},
              {"learning_rate", o.learning_rate},
              {"min_lr_ratio", o.min_lr_ratio},
              {"warmup_ratio", o.warmup_ratio},
              {"weight_decay", o.weight_decay},
              {"clip", o.clip},
              {"beta1", o.beta1},
              {"beta2", o.beta2},
              {"epsilon", o.epsilon},
              {"batch_tokens", o.batch_tokens},
              {"accumulate", o.accumulate},
              {"sequence_length", o.sequence_length},
              {"max_steps", o.max_steps},
              {"epochs", o.epochs},
              {"time_limit_seconds", o.time_limit_seconds},
              {"evaluate_every", o.evaluate_every},
              {"evaluate_rows", o.evaluate_rows},
              {"checkpoint_every", o.checkpoint_every},
              {"temperature", o.temperature},
              {"teacher_cache_mib", o.teacher_cache_mib},
              {"dtype", o.device.dtype},
              {"seed", o.device.seed}};
  // run.json has these two keys only for a new head or for values other than the default. Earlier versions wrote
  // neither key, and --resume compares run.json.
  const DistillOptions usual;
  if (new_head(parse_draft_spec(o.draft)) || o.ttt_steps != usual.ttt_steps || o.ttt_decay != usual.ttt_decay)
    out.update(Json{{"ttt_steps", o.ttt_steps}, {"ttt_decay", o.ttt_decay}});
  if (o.served_temperatures) out["served_temperatures"] = true;
  if (!o.rejects.empty()) out.update(Json{{"rejects", o.rejects}, {"reject_weight", o.reject_weight}});
  if (o.on_policy > 0) out.update(Json{{"on_policy", o.on_policy}, {"anchors", o.anchors}});
  if (o.sample < 1) out["sample"] = o.sample;
  // run.json has this key only for a teacher other than the default. Earlier versions did not write the key, and
  // --resume compares run.json.
  if (o.teacher != "target") out["teacher"] = o.teacher;
  if (o.contexts != kContextsOfEarlierRuns) out["contexts"] = o.contexts;
  return out;
}

std::string differing_keys(const Json& a, const Json& b) {
  std::string out;
  collect(a, b, "", out);
  return out;
}

Json scores_json(const std::vector<TokenRow>& rows, const Evaluation& before, const Evaluation& after) {
  Json scores = Json::array();
  for (size_t i = 0; i < rows.size(); ++i)
    scores.push_back({{"id", rows[i].id},
                      {"conversation", rows[i].conversation},
                      {"tokens", after.rows[i].tokens},
                      {"before", number(before.rows[i].acceptance)},
                      {"after", number(after.rows[i].acceptance)}});
  return {{"schema", "specdec.distill_scores/1"}, {"rows", scores}};
}

Json to_json(const Evaluation& e) {
  Json rows = Json::array();
  for (const RowScore& r : e.rows) {
    Json stretches = Json::array();
    for (size_t s = 0; s < kAnswerStretches; ++s)
      stretches.push_back({number(r.stretch_acceptance[s]), r.stretch_tokens[s]});
    rows.push_back({number(r.acceptance), number(r.agreement), number(r.cross_entropy), r.tokens, stretches});
  }
  return {{"rows", rows},
          {"acceptance", number(e.acceptance)},
          {"acceptance_tokens", number(e.acceptance_tokens)},
          {"greedy_agreement", number(e.greedy_agreement)},
          {"cross_entropy", number(e.cross_entropy)},
          {"tokens", e.tokens}};
}

Evaluation evaluation_from_json(const Json& object) {
  const auto real = [](const Json& x) {
    return x.is_null() ? std::numeric_limits<double>::quiet_NaN() : x.get<double>();
  };
  try {
    Evaluation e;
    for (const Json& r : object.at("rows")) {
      RowScore row{real(r.at(0)), real(r.at(1)), real(r.at(2)), r.at(3).get<int64_t>()};
      for (size_t s = 0; r.size() > 4 && s < kAnswerStretches; ++s) {  // earlier versions saved no stretches
        row.stretch_acceptance[s] = real(r.at(4).at(s).at(0));
        row.stretch_tokens[s] = r.at(4).at(s).at(1).get<int64_t>();
      }
      e.rows.push_back(row);
    }
    e.acceptance = real(object.at("acceptance"));
    e.acceptance_tokens = real(object.at("acceptance_tokens"));
    e.greedy_agreement = real(object.at("greedy_agreement"));
    e.cross_entropy = real(object.at("cross_entropy"));
    e.tokens = object.at("tokens").get<int64_t>();
    return e;
  } catch (const Json::exception& error) {
    throw Error(ErrorKind::kData,
                std::string("checkpoint state: the evaluation before training is malformed: ") + error.what());
  }
}

namespace {

std::vector<DistillPart> compared(const std::vector<PartScore>& before, const std::vector<PartScore>& after) {
  std::vector<DistillPart> out;
  for (const PartScore& part : after) {
    const auto earlier = std::find_if(before.begin(), before.end(), [&](const auto& b) { return b.name == part.name; });
    DistillPart& both = out.emplace_back(DistillPart{.name = part.name,
                                                     .after = distill_figure(part.acceptance),
                                                     .requests = part.requests,
                                                     .conversations = part.conversations,
                                                     .tokens = part.tokens});
    if (earlier != before.end()) both.before = distill_figure(earlier->acceptance);
  }
  return out;
}

DistillSide side_of(const Evaluation& e, const Estimate& estimate) {
  return {distill_figure(estimate), if_finite(e.acceptance_tokens), if_finite(e.greedy_agreement),
          if_finite(e.cross_entropy)};
}

DistillScores scores_of(const Outcome& o) {
  DistillScores scores;
  scores.by_acceptance = o.by_acceptance;
  scores.before = side_of(o.before, o.judgement.before);
  scores.after = side_of(o.after, o.judgement.after);
  scores.difference = distill_figure(o.judgement.difference);
  scores.requests = static_cast<int64_t>(o.after.rows.size());
  scores.conversations = o.verdict_conversations;
  scores.tokens = o.after.tokens;
  if (o.after.is_bound) {
    scores.rest = if_finite(o.after.rest);
    scores.certain = distill_figure(o.judgement.certain);
  }
  scores.by_position = o.parts.by_position;
  scores.by_domain = o.parts.by_domain;
  return scores;
}

DistillTraining training_of(const Outcome& o) {
  const TrainingSummary& t = o.training;
  DistillTraining out{.steps = t.steps,
                      .tokens = t.tokens,
                      .seconds = t.seconds,
                      .tokens_per_second = t.tokens_per_second,
                      .last_loss = if_finite(t.last_loss),
                      .skipped_steps = t.skipped_steps,
                      .roll_backs = t.rollbacks,
                      .kept_step = o.kept_step,
                      .selected_by = o.by_acceptance ? "acceptance" : "cross_entropy",
                      .selection_requests = o.selection_requests,
                      .selection_conversations = o.selection_conversations};
  for (const Measured& m : t.measured) {
    out.measured.push_back({m.step, if_finite(m.score), if_finite(m.loss)});
    if (m.ci) out.measured.back().ci = {number(m.ci->low), number(m.ci->high)};
  }
  out.deeper_acceptance = t.deeper;
  out.chosen = o.chosen;
  out.layers = o.search;
  return out;
}

DistillCost cost_of(const Outcome& o) {
  DistillCost cost{.seconds = o.seconds,
                   .training_seconds = o.training.seconds,
                   .training_tokens = o.training.tokens,
                   .tokens_per_second = o.training.tokens_per_second,
                   .device = o.device,
                   .processes = o.processes,
                   .dtype = o.compute.flag,
                   .dtype_reason = o.compute.reason};
  if (o.teacher_share) cost.teacher_share = if_finite(*o.teacher_share);
  return cost;
}

}  // namespace

PartFigures part_figures(const std::vector<TokenRow>& rows, const Evaluation& before, const Evaluation& after) {
  return {compared(by_stretch(rows, before), by_stretch(rows, after)),
          compared(by_domain(rows, before), by_domain(rows, after))};
}

DistillReport report_of(const Outcome& o, const DistillOptions& options, const std::optional<Fingerprint>& draft) {
  const auto& curve = o.training.measured;
  const NextStep next = next_step(o.judgement.verdict, o.asked,
                                  {.rising = !curve.empty() && o.kept_step == curve.back().step,
                                   .partial = o.verdict_conversations >= kMinVerdictConversations,
                                   .longer = longer_for_a_verdict(o)});
  DistillReport report;
  report.verdict = o.judgement.verdict;
  report.started = o.started;
  report.seconds = o.seconds;
  report.reason = reason(o);
  report.inputs = o.inputs;
  report.options = describe(options);
  report.data = o.data_counts;
  report.scores = scores_of(o);
  report.training = training_of(o);
  report.cost = cost_of(o);
  report.next = next.command;
  report.next_reason = next.reason;
  report.draft_vocab = o.vocabulary;
  report.draft = DraftOutput{"draft", draft ? draft->id : ""};
  return report;
}

void publish_draft(const TrainedDraft& draft, at::ScalarType dtype, const DistillOptions& options,
                   const std::optional<Fingerprint>& target, const Json& result) {
  replace_directory(fs::path(options.out) / "draft", [&](const fs::path& tmp) {
    draft.write_as(dtype, tmp);
    for (const char* name : kTokenizerFiles) {
      const fs::path from = fs::path(options.target) / name;
      if (fs::exists(from)) write_file_atomic(tmp / name, read_file(from, size_t{256} << 20, ErrorKind::kModel));
    }
    if (!target) return;
    DraftBinding binding;
    binding.target = *target;
    binding.kind =
        options.draft.substr(0, options.draft.starts_with("prune:") ? std::string::npos : options.draft.find(':'));
    binding.loss = options.loss;
    binding.training = result;
    write_file_atomic(tmp / "specdec.json", to_json(binding).dump(2) + "\n");
  });
}

}  // namespace specdec::distill
