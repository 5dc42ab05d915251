#include "distill/run/run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/output_directory.h"
#include "base/safetensors.h"
#include "base/verdict.h"
#include "base/version.h"
#include "data/shards/shard_reader.h"
#include "distill/run/draft_vocab.h"
#include "distill/run/output.h"
#include "distill/run/preparation.h"
#include "distill/run/run_directory.h"
#include "distill/run/setup.h"
#include "distill/teacher/timed_teacher.h"
#include "distill/train/timed_evaluation.h"
#include "distill/train/trainer.h"
#include "engine/decode/device/device_round.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/forward/device_errors.h"

namespace specdec::distill {

namespace {

// Sets max_steps for a run that is limited by epochs.
void count_steps(Setup& s) {
  DistillOptions& o = s.options;
  if (o.max_steps > 0 || o.epochs <= 0 || s.train.rows.empty()) return;
  const Batcher batcher(s.train.rows, o.batch_tokens, o.device.seed);
  // The number of batches varies by about one between epochs, so this averages it over the first few epochs.
  const auto looked_at = static_cast<int64_t>(std::clamp(std::ceil(o.epochs), 1.0, 4.0));
  double batches = 0;
  for (int64_t e = 0; e < looked_at; ++e)
    batches += static_cast<double>(batcher.batches_in_epoch(e)) / static_cast<double>(looked_at);
  batches *= o.epochs;
  o.max_steps =
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(batches / static_cast<double>(o.accumulate) - 1e-9)));
}

TrainerOptions trainer_options(const Setup& s) {
  const DistillOptions& o = s.options;
  TrainerOptions t;
  t.run_directory = o.out;
  t.loss = {parse_loss(o.loss), o.lk_eta, o.temperature};
  t.on_policy = {o.on_policy, o.anchors, o.device.seed};
  t.terms = {o.served_temperatures, o.rejects.empty() ? nullptr : &s.rejects, o.reject_weight};
  t.adamw = {o.beta1, o.beta2, o.epsilon, o.weight_decay, o.clip};
  t.schedule = {o.learning_rate, o.min_lr_ratio, o.warmup_ratio, o.max_steps, s.training_seconds, s.expected_steps};
  t.batch_tokens = o.batch_tokens;
  t.accumulate = o.accumulate;
  t.evaluate_every = o.evaluate_every;
  t.checkpoint_every = o.checkpoint_every;
  t.shares_optimizer = s.shares_optimizer;
  t.recompute = o.recompute;
  t.seed = o.device.seed;
  return t;
}

// Restores the best measured checkpoint that is still intact, and returns its step.
int64_t restore_best(const std::vector<Measured>& measured, const CheckpointStore& store, const TrainedDraft& draft) {
  for (const int64_t step : rank_checkpoints(measured)) {
    if (const auto checkpoint = store.open(step)) {
      CheckpointStore::restore(*checkpoint, draft);
      return step;
    }
  }
  throw Error(ErrorKind::kModel,
              "the draft gives no finite logits on held-out rows, and none of its checkpoints is whole");
}

// Returns the exit code of a finished run, given its result.json. Any verdict but improved and no_significant_gain
// counts as inconclusive.
int exit_code_of(const Json& done, const std::string& where) {
  const auto verdict = verdict_named(json_string(done, "verdict", where, ErrorKind::kData));
  const bool is_decided = verdict == Verdict::kImproved || verdict == Verdict::kNoSignificantGain;
  return exit_code(is_decided ? *verdict : Verdict::kInconclusive);
}

DistillResult no_data(const Setup& s, const std::string& started) {
  const NextStep next = next_step(Verdict::kInconclusive, s.asked, {});
  DistillReport report;
  report.started = started;
  report.reason = "no row has a token to learn: " + s.options.data + " holds too little data";
  report.inputs = s.inputs;
  report.options = describe(s.options);
  report.data = s.data_counts;
  report.next = next.command;
  report.next_reason = next.reason;
  const Json json = json_of(report);
  if (s.ranks->is_first()) write_file_atomic(fs::path(s.options.out) / "result.json", json.dump(2) + "\n");
  return {json, exit_code(report.verdict)};
}

// The state that training starts from; a resumed run takes it from its checkpoint.
struct Start {
  DraftInit init;
  std::optional<Checkpoint> checkpoint;
  // TrainerOptions::extra, chosen and measured before the first step: {"before", "search", "chosen", "selection_rows",
  // "verdict_rows", "exactly", "evaluations"}
  Json kept;
  double start_seconds = 0;  // duration of measuring the initial draft; 0 in a resumed run
};

// Generates the target's answers to the held-out prompts, and saves them in RUN.
HeldOutAnswers answer_prompts(const Setup& s, const HeldOut& held_out, const AnswerLimits& limits, Stages& stages) {
  stages.begin("answering held-out prompts");
  const EvaluationStep step = stages.step();
  HeldOutAnswers answers;
  const auto answer = [&](decode::CausalModel& target) {
    answers = answer_held_out(target, held_out,
                              {.temperature = s.options.temperature,
                               .seed = s.options.device.seed,
                               .eos_ids = s.target->config.eos_ids,
                               .limits = limits,
                               .together = answers_together(*s.target, held_out, limits, s.spare_bytes)},
                              [&](const Progress& p) { step(p.total > 0 ? p.done / p.total : 0); });
  };
  s.divided ? s.divided->decode(answer) : answer(*decode::with_rounds(decode::make_model_runner(s.target)));
  write_file_atomic(fs::path(s.options.out) / kContextsFile, to_json(answers).dump() + "\n");
  return answers;
}

Start start_anew(Setup& s, Stages& stages) {
  const model::DecoderConfig draft = draft_config(s);
  PreparationInput input{s.options, s.spec, s.target, s.teacher.get(), draft, s.device, s.train};
  input.limits = s.limits;
  if (s.head) input.head_parameters = head_plan(s).parameters;
  input.ranks = s.ranks;
  input.divided = s.divided;
  if (s.answers_anew)
    input.answer = [&](const HeldOut& held_out, const AnswerLimits& limits) {
      return answer_prompts(s, held_out, limits, stages);
    };
  Preparation prepared = prepare(input, s.held_out, stages, *s.time);
  Json kept = {{"before", to_json(prepared.before)},
               {"search", prepared.init.search},
               {"selection_rows", prepared.selection_rows},
               {"verdict_rows", prepared.verdict_rows},
               {"exactly", prepared.exactly},
               {"evaluations", prepared.evaluations}};
  return {std::move(prepared.init), std::nullopt, std::move(kept), prepared.start_seconds};
}

// Reads the draft from the checkpoint in `directory`.
DraftInit read_draft(const Setup& s, const fs::path& directory) {
  if (!s.head)
    return {model::load_decoder(directory, s.device, model::load_decoder_config(directory).dtype), nullptr, nullptr};
  const std::string dtype = model::dtype_flag(s.head->plan_of(directory, s.target->config).layers.dtype);
  return init_draft({.spec = {"model", directory.string()},
                     .dtype = dtype,
                     .device = s.device,
                     .ttt_steps = s.options.ttt_steps,
                     .ttt_decay = s.options.ttt_decay},
                    s.target, {});
}

// Builds the start of a resumed run. Rank 0 passes the checkpoint, the other ranks an empty one.
Start go_on(Setup& s, Checkpoint checkpoint, Stages& stages) {
  stages.begin("reading the checkpoint of step " + std::to_string(checkpoint.step));
  checkpoint.state = Json::parse(s.ranks->broadcast(checkpoint.state.dump()));
  const Json kept = checkpoint.state.value("extra", Json::object());
  const std::string where = (checkpoint.directory / "state.json").string();
  for (const char* key : {"before", "search", "chosen"})
    if (!kept.contains(key))
      throw Error(ErrorKind::kData, where + ": extra." + key +
                                        " is missing: an earlier version wrote it; start again with another --out");
  shorten(s.held_out, json_int(kept, "selection_rows", {1, INT64_MAX}, where, ErrorKind::kData),
          json_int(kept, "verdict_rows", {1, INT64_MAX}, where, ErrorKind::kData),
          kept.value("exactly", false));  // checkpoints of earlier versions have no such key
  if (s.answers_anew) {
    const std::string file = (fs::path(s.options.out) / kContextsFile).string();
    const std::string text = s.ranks->broadcast(s.ranks->is_first() ? read_json(file).dump() : "");
    put_answers(answers_from_json(parse_json(text, file), s.target->config.vocab_size, file), s.limits, file,
                s.held_out);
  }
  // With a time limit, the interrupted run may have measured only the first rows, so the resumed run uses the same
  // rows.
  s.held_out.verdict.resize(std::min(s.held_out.verdict.size(), evaluation_from_json(kept.at("before")).rows.size()));
  s.held_out.verdict_conversations = count_conversations(s.held_out.verdict);
  DraftInit init;
  if (s.ranks->is_first()) init = read_draft(s, checkpoint.directory);
  share_draft(init, s.target, *s.ranks, s.device);
  if (init.head) init.head->divide(s.divided);
  return {std::move(init), checkpoint, kept, 0};
}

// Estimates the seconds from the end of training to the end of the run: one more evaluation of the selection half, and
// one of the verdict half.
double judging_seconds(const Setup& s, const Start& start, const Json& chosen) {
  constexpr double kSafety = 1.5, kPublishShare = 0.02;
  const auto rows = static_cast<double>(std::max<size_t>(1, s.held_out.verdict.size())),
             more = static_cast<double>(s.held_out.selection.size());
  return kSafety * start.start_seconds * (rows + more) / rows + chosen.value("step_seconds", 0.0) +
         kPublishShare * s.time->limit();
}

// Chooses the settings that the options leave open, and the training time within the time limit.
Json choose_in_time(Setup& s, const Start& start, const StepInput& input, Stages& stages, const Clock& clock) {
  RunLimits limits = run_limits(s.options, s.train.tokens);
  if (!s.time->is_limited()) return choose_settings(s.options, limits, input, stages, clock);
  limits.tuning_seconds = s.time->seconds_for(TimePlan::Stage::kStep);
  limits.seconds =
      std::max(1e-3, s.time->training_seconds(judging_seconds(s, start, Json::object())) - limits.tuning_seconds);
  Json chosen = choose_settings(s.options, limits, input, stages, clock);
  const double judging = std::min(judging_seconds(s, start, chosen), s.time->judging_seconds()),
               training = s.time->training_seconds(judging);
  chosen["training_seconds"] = training;
  log(LogLevel::kInfo,
      format("of the time limit of %s preparing took %.0f s; training has %.0f s, and judging takes about %.0f s",
             duration_text(s.time->limit()).c_str(), s.time->elapsed(), training, judging));
  return chosen;
}

// Sets the options that were left open: to the resumed run's values, or to those that rank 0 chooses.
void settle(Setup& s, Start& start, Teacher* teacher, Stages& stages, const Clock& clock) {
  if (!start.kept.contains("chosen")) {
    const TrainedDraft draft = start.init.draft();
    const TrainerOptions options = trainer_options(s);
    StepInput input{draft.source(teacher, options.loss), draft.trainable(), s.train.rows, s.ranks->count()};
    input.source.on_policy = options.on_policy;
    input.source.terms = options.terms;
    input.source.recompute = options.recompute;
    input.source.rows = &s.train.rows;
    if (s.divided) s.divided->take_time_of_all(true);
    const Json chosen = s.ranks->is_first() ? choose_in_time(s, start, input, stages, clock) : Json();
    if (s.divided) {
      s.divided->finish();
      s.divided->take_time_of_all(false);
    }
    start.kept["chosen"] = Json::parse(s.ranks->broadcast(chosen.dump()));
  }
  const Json& chosen = start.kept.at("chosen");
  apply_settings(chosen, s.options);
  // Checkpoints of earlier versions have no training_seconds, because training could use the whole time limit.
  s.training_seconds = chosen.value("training_seconds", s.options.time_limit_seconds);
  s.expected_steps = static_cast<int64_t>(chosen.value("expected_steps", 0.0));
  count_steps(s);
}

// Receivers of progress during training, and the clock.
struct Reporting {
  Stages& stages;
  const ProgressFn& progress;
  const Clock& clock;
};

// Trains the draft. Sets `teacher_share` to the teacher's share of the training time, if that can be measured. It
// cannot be measured on a GPU, which still computes after a call has returned, nor for a head, which runs the target
// itself.
TrainingSummary train(Setup& s, Start& start, const Reporting& to, std::optional<double>& teacher_share) {
  Stages& stages = to.stages;
  const Clock& clock = to.clock;
  std::unique_ptr<TimedTeacher> teacher;
  std::unique_ptr<Teacher> judge;
  const int64_t cache = s.options.teacher_cache_mib << 20;
  if (s.from.kind != TeacherSpec::Kind::kTarget) s.target.reset();  // a draft prune:N already has copies of its layers
  // A cache of logits would be useless for heads, which get the logits from the pass that also gives hidden states, and
  // for roll-outs, which need a new pass of the target in every step.
  const bool reads_every_step = s.head || s.options.on_policy > 0;
  if (!s.ce)
    teacher = std::make_unique<TimedTeacher>(s.teacher->teach(s.train.rows, reads_every_step ? 0 : cache), clock);
  if (s.teacher) judge = s.teacher->teach(s.held_out.selection, cache);
  settle(s, start, teacher.get(), stages, clock);
  TrainerOptions options = trainer_options(s);
  options.extra = start.kept;
  options.evaluations = start.kept.value("evaluations", kMostEvaluations);
  Trainer trainer(options, {&s.train.rows, &s.held_out.selection, teacher.get(), judge.get(), s.ranks, s.divided.get()},
                  start.init.draft(), clock, to.progress);
  if (start.checkpoint) trainer.resume(*start.checkpoint);
  stages.begin(start.checkpoint ? "going on" : "measuring and saving the start");
  if (teacher) teacher->restart();
  const double begin = clock.seconds();
  const TrainingSummary summary = trainer.run();
  const double taken = clock.seconds() - begin;
  if (teacher && taken > 0 && s.device.is_cpu() && !s.head) teacher_share = teacher->seconds() / taken;
  return summary;
}

// On rank 0: judges the draft by the scores that all ranks measured, and publishes it.
DistillResult finish(const Setup& s, const TrainedDraft& draft, Outcome& outcome, double begin, const Clock& clock) {
  const fs::path out = s.options.out;
  outcome.by_acceptance = s.teacher != nullptr;
  outcome.judgement = distill::judge(s.held_out.verdict, outcome.before, outcome.after, outcome.by_acceptance);
  const bool are_few = count_conversations(s.held_out.verdict) < kMinVerdictConversations;
  outcome.taught_little =
      outcome.training.steps < kTeachingSteps && (are_few || outcome.judgement.verdict == Verdict::kNoSignificantGain);
  if (outcome.taught_little) outcome.judgement.verdict = Verdict::kInconclusive;
  outcome.asked = s.asked;
  outcome.verdict_conversations = count_conversations(s.held_out.verdict);
  outcome.held_out_conversations = s.held_out_conversations;
  outcome.selection_conversations = s.held_out.selection_conversations;
  outcome.selection_requests = static_cast<int64_t>(s.held_out.selection.size());
  outcome.inputs = s.inputs;
  outcome.data_counts = s.data_counts;
  outcome.device = s.device.str();
  outcome.processes = s.ranks->count();
  outcome.compute = s.compute;
  if (outcome.by_acceptance) outcome.parts = part_figures(s.held_out.verdict, outcome.before, outcome.after);
  if (const std::vector<int32_t>& ids = draft.config().draft_vocab; !ids.empty())
    outcome.vocabulary = {{"tokens", ids.size()},
                          {"train", vocab_coverage(s.train.rows, ids)},
                          {"holdout", vocab_coverage(s.held_out.verdict, ids)}};
  outcome.seconds = clock.seconds() - begin;
  write_file_atomic(out / "scores.json", scores_json(s.held_out.verdict, outcome.before, outcome.after).dump() + "\n");
  publish_draft(draft, s.published, s.options, s.target_id, json_of(report_of(outcome, s.options, std::nullopt)));
  const Json json = json_of(report_of(outcome, s.options, fingerprint_model(out / "draft")));
  write_file_atomic(out / "result.json", json.dump(2) + "\n");
  return {json, exit_code(outcome.judgement.verdict)};
}

DistillResult train_and_judge(Setup& s, const ProgressFn& progress, const Clock& clock, const std::string& started) {
  const parallel::Ranks& ranks = *s.ranks;
  const double begin = clock.seconds();
  Stages stages(progress);
  std::optional<CheckpointStore> store;
  if (ranks.is_first()) store.emplace(fs::path(s.options.out) / "checkpoints");
  auto checkpoint = s.options.resume && store ? store->newest_good() : std::nullopt;
  const bool resumes = ranks.any(checkpoint.has_value());
  Start start = resumes ? go_on(s, checkpoint.value_or(Checkpoint{}), stages) : start_anew(s, stages);
  Outcome outcome;
  outcome.before = evaluation_from_json(start.kept.at("before"));
  outcome.search = start.kept.at("search");
  outcome.started = started;
  outcome.training = train(s, start, {stages, progress, clock}, outcome.teacher_share);
  const TrainedDraft draft = start.init.draft();
  outcome.chosen = start.kept["chosen"];
  if (store) outcome.kept_step = restore_best(outcome.training.measured, *store, draft);
  share_weights(draft, ranks);
  draft.round_to(s.published);  // the draft is judged with the rounded weights that are saved
  stages.begin("judging");
  const EvaluationOptions measured{
      .temperature = s.options.temperature, .step = stages.step(), .ranks = s.ranks, .divided = s.divided.get()};
  const std::unique_ptr<Teacher> judge = s.teacher ? s.teacher->teach(s.held_out.verdict, 0) : nullptr;
  outcome.after = evaluate_within(s.time->judging_seconds(), clock, draft, judge.get(), s.held_out.verdict, measured);
  outcome.before = first_rows(outcome.before, s.held_out.verdict.size());
  DistillResult result;
  if (ranks.is_first()) result = finish(s, draft, outcome, begin, clock);
  result.exit_code = std::stoi(ranks.broadcast(std::to_string(result.exit_code)));
  return result;
}

// Throws Error(kUsage) unless this rank has the same options and inputs as rank 0.
void compare_with_first(const Setup& s) {
  const Json own = {{"options", s.given}, {"inputs", s.inputs}, {"tool_version", kToolVersion}};
  const std::string keys = differing_keys(Json::parse(s.ranks->broadcast(own.dump())), own);
  if (!keys.empty())
    throw Error(ErrorKind::kUsage, "all ranks need the same options and inputs; rank 0 has others: " + keys);
}

}  // namespace

void check_output(const DistillOptions& options) {
  // A directory may hold a run, its forecast and a comparison, made in any order.
  const std::string name = options.forecast.wanted ? "forecast" : !options.compared.empty() ? "comparison" : "run";
  const std::string own = name == "forecast" ? kForecastRunFile : name == "run" ? "run.json" : kComparisonRunFile;
  check_output_directory(options.out, {.flag = "--out",
                                       .command = "specdec distill",
                                       .results = {{"run.json", "distill_run"},
                                                   {kForecastRunFile, "distill_run"},
                                                   {kComparisonRunFile, "distill_run"}}});
  if (RunDirectory::has_begun((fs::path(options.out) / own).parent_path()) && !options.resume)
    throw Error(ErrorKind::kUsage, "--out " + options.out + ": has an earlier " + name +
                                       " of specdec distill: --resume goes on with it; for a new one give a new or an "
                                       "empty directory");
}

void check_request(const DistillOptions& options) {
  if (!options.compared.empty() && !has_weights(options.target))
    throw Error(ErrorKind::kUsage, "--compare: costs are measured, and " + options.target +
                                       " has no weights to measure them with: give the whole target");
  const data::ShardReader data(options.data);
  for (const std::string& draft : options.compared.empty() ? std::vector{options.draft} : options.compared) {
    DistillOptions one = options;
    one.draft = draft;
    const Setup s = begin_setup(one);
    const bool loads = s.target_config && s.from.kind == TeacherSpec::Kind::kTarget;
    for (const std::string& model : {loads ? options.target : "", s.spec.kind == "model" ? s.spec.argument : ""})
      if (!model.empty() && !has_weights(model))
        throw Error(ErrorKind::kModel, model + ": expected a model, found no model.safetensors");
    check_fit(s, draft_config(s), data.index());
  }
  if (!options.rejects.empty() && !fs::is_directory(options.rejects))
    throw Error(ErrorKind::kData, "--rejects " + options.rejects + ": expected a directory, found none");
}

namespace {

DistillResult run_on_device(const DistillOptions& options, const ProgressFn& progress, const Clock& clock,
                            const parallel::Ranks& ranks) {
  const std::string started = format_utc(clock.unix_seconds());
  Setup s = begin_setup(options);
  s.ranks = &ranks;
  s.time.emplace(options.time_limit_seconds, options.sample, clock);
  if (s.from.kind == TeacherSpec::Kind::kEndpoint)
    throw Error(ErrorKind::kInternal, "--teacher URL: the endpoint's labels must be written first");
  if (ranks.is_first()) check_output(options);
  const fs::path out = options.out;
  if (ranks.is_first()) take_over_options(s);
  s.options.contexts = ranks.broadcast(s.options.contexts);
  if (options.device.threads > 0) at::set_num_threads(options.device.threads);
  const ProgressFn shown = ranks.is_first() ? progress : ProgressFn();
  Stages stages(shown);
  stages.begin("loading the target", options.target);
  load_target(s);
  const model::DecoderConfig draft = draft_config(s);
  stages.begin("reading the data", options.data);
  load_data(s, draft, stages);
  s.time->set_loaded();
  if (s.options.max_steps == 0 && s.options.epochs == 0 && s.options.time_limit_seconds == 0) s.options.epochs = 3;
  s.given = describe(s.options);
  compare_with_first(s);
  std::optional<RunDirectory> directory;
  DistillResult done;
  if (ranks.is_first()) {
    directory.emplace(out);
    directory->enter(s.given, s.inputs);
    remove_partials(out, 0);  // partial files of a killed run; the lock ensures that no process is writing them
    if (fs::exists(out / "result.json")) {
      done.json = read_json(out / "result.json");
      require_schema(done.json, "distill", 1, (out / "result.json").string());
      done.exit_code = exit_code_of(done.json, (out / "result.json").string());
    }
  }
  const std::string ended = ranks.broadcast(done.json.is_null() ? "" : std::to_string(done.exit_code));
  if (!ended.empty()) return {done.json, std::stoi(ended)};
  plan_memory(s, draft);
  DistillResult result = s.train.rows.empty() ? no_data(s, started) : train_and_judge(s, shown, clock, started);
  if (directory) directory->keep();
  return result;
}

}  // namespace

DistillResult run(const DistillOptions& options, const ProgressFn& progress, const Clock& clock,
                  const parallel::Ranks& ranks) {
  return model::with_device_errors([&] { return run_on_device(options, progress, clock, ranks); });
}

}  // namespace specdec::distill
