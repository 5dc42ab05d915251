#include "distill/run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/log.h"
#include "base/output_directory.h"
#include "base/verdict.h"
#include "base/version.h"
#include "data/shard_reader.h"
#include "distill/contexts.h"
#include "distill/draft_vocab.h"
#include "distill/head_loss.h"
#include "distill/open_teacher.h"
#include "distill/output.h"
#include "distill/preparation.h"
#include "distill/run_directory.h"
#include "distill/trainer.h"
#include "engine/model/memory_plan.h"

namespace specdec::distill {

namespace {

constexpr size_t kMaxSelectionRows = 64, kMaxVerdictRows = 1000;

bool has_weights(const fs::path& directory) {
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"})
    if (fs::exists(directory / name)) return true;
  return false;
}

// The loaded target and data, and the options with some defaults filled in.
struct Setup {
  DistillOptions options;
  DraftSpec spec;
  TeacherSpec from;
  bool ce = false;
  bool eagle = false;                                 // the draft is an EAGLE-3 head
  std::shared_ptr<const model::Decoder> target;       // null: its layers are not needed
  std::optional<model::DecoderConfig> target_config;  // empty: cross entropy alone
  std::unique_ptr<TeacherSource> teacher;             // null: cross entropy alone
  std::optional<Fingerprint> target_id;               // empty if the target has no weights
  PreparedRows train;
  HeldOut held_out;
  int64_t holdout_rows = 0;
  RowLimits limits;           // of held-out rows
  bool answers_anew = false;  // the target answers the held-out prompts
  Json given;                 // the options that --resume compares
  Json inputs, data_counts;
  at::Device device = at::kCPU;
  const Ranks* ranks = nullptr;
};

void load_target(Setup& s) {
  const DistillOptions& o = s.options;
  s.device = model::resolve_device(s.ranks->device(o.device.device));
  s.ranks->use_device(s.device);
  const fs::path directory = o.target;
  s.inputs["target"] = {{"path", o.target}, {"id", ""}, {"tokenizer", tokenizer_digest(directory)}};
  // With ce alone the draft learns from the text, and the target is only needed to measure acceptance. Then the target
  // is not loaded if it has no weights, or if the draft starts as the target itself.
  const bool itself =
      s.spec.kind == "model" && fs::weakly_canonical(s.spec.argument) == fs::weakly_canonical(directory);
  const bool here = s.from.kind == TeacherSpec::Kind::kTarget;
  if (here && s.ce && (itself || !has_weights(directory))) return;
  if (here || s.from.kind == TeacherSpec::Kind::kHidden || has_weights(directory)) {
    s.target_id = fingerprint_model(directory);
    s.inputs["target"]["id"] = s.target_id->id;
  }
  s.target_config = model::load_decoder_config(directory);
  s.target_config->draft_vocab.clear();
  if (!here && (s.spec.kind != "prune" || !has_weights(directory))) return;
  const auto target = std::make_shared<model::Decoder>(
      model::load_decoder(directory, s.device, model::resolve_dtype(o.device.dtype, *s.target_config)));
  target->config.draft_vocab.clear();  // the teacher uses its whole vocabulary
  s.target = target;
}

// Returns the configuration of the head that will be trained.
model::EagleConfig eagle_config(const Setup& s) {
  if (!s.target)
    throw Error(ErrorKind::kUsage, "--draft " + s.options.draft +
                                       ": an EAGLE-3 head reads the target's hidden states, and " + s.options.target +
                                       " has no weights");
  if (s.spec.kind == "model") {
    if (s.options.draft_vocab > 0)
      throw Error(ErrorKind::kUsage, "--draft-vocab: the ids of an existing EAGLE-3 head are fixed");
    return model::load_eagle_config(s.spec.argument, s.target->config);
  }
  model::EagleConfig config = model::eagle_config_for(s.target->config);
  if (s.options.draft_vocab > 0) config.draft_vocab_size = s.options.draft_vocab;
  return config;
}

model::DecoderConfig draft_config(const Setup& s) {
  if (s.eagle) return eagle_config(s).layer;
  if (s.spec.kind == "prune") {
    if (!s.target)
      throw Error(ErrorKind::kUsage, "--draft " + s.options.draft + " takes layers of the target, and " +
                                         s.options.target + " has no weights");
    if (s.spec.layers < 1 || s.spec.layers > s.target->config.num_layers)
      throw Error(ErrorKind::kUsage, "--draft " + s.options.draft + ": the target has " +
                                         std::to_string(s.target->config.num_layers) + " layers");
    return s.target->config;
  }
  if (s.spec.kind == "model") return model::load_decoder_config(s.spec.argument);
  return model::parse_decoder_config(read_json(s.spec.argument, ErrorKind::kModel), s.spec.argument);
}

void check_tokens(const std::vector<TokenRow>& rows, int64_t vocab, const std::string& where) {
  for (const TokenRow& row : rows)
    for (const int32_t t : row.tokens)
      if (t < 0 || t >= vocab)
        throw Error(ErrorKind::kData, where + ": row " + row.id + ": token id " + std::to_string(t) +
                                          " is outside the vocabulary of " + std::to_string(vocab));
}

// A head pairs the hidden state of a token with the next token and predicts the one after, so it never predicts the
// second token of a row.
void forget_second_tokens(std::vector<TokenRow>& rows) {
  for (TokenRow& row : rows)
    if (row.loss_mask.size() > 1) row.loss_mask[1] = 0;
}

// Opens the teacher, and leaves out the rows that it does not answer. Returns how many there were, or null if the
// target itself is the teacher.
Json open_teacher(Setup& s, PreparedRows& held_out, Stages& stages) {
  if (!s.target_config) return nullptr;
  if (s.from.kind == TeacherSpec::Kind::kTarget) {
    s.teacher = std::make_unique<ModelSource>(s.target);
    return nullptr;
  }
  stages.begin("checking the teacher's files", s.from.argument);
  const TeacherInput input{s.options,
                           s.from,
                           s.device,
                           s.inputs["data"]["digest"],
                           s.inputs["target"]["tokenizer"],
                           s.inputs["target"]["id"]};
  OpenedTeacher opened = open_teacher_files(input, s.train, held_out, stages.step());
  if (!s.target_id) s.target_id = opened.target;
  s.teacher = std::move(opened.source);
  s.inputs["teacher"] = opened.record;
  return {{"train", drop_unanswered(*s.teacher, "training", s.train)},
          {"holdout", drop_unanswered(*s.teacher, "held-out", held_out)}};
}

void load_data(Setup& s, const model::DecoderConfig& draft, Stages& stages) {
  DistillOptions& o = s.options;
  const data::ShardReader reader(o.data);
  const std::string tokenizer = s.inputs["target"]["tokenizer"];
  if (reader.index().tokenizer_digest != tokenizer)
    throw Error(ErrorKind::kData, o.data + ": tokenised by another tokenizer (" +
                                      reader.index().tokenizer_digest.substr(0, 12) + ") than the target's (" +
                                      tokenizer.substr(0, 12) + "): run `specdec data ingest` again with --target " +
                                      o.target);
  if (s.target_config && s.target_config->vocab_size != draft.vocab_size)
    throw Error(ErrorKind::kModel, "--draft " + o.draft + ": vocab_size " + std::to_string(draft.vocab_size) +
                                       ", the target has " + std::to_string(s.target_config->vocab_size) +
                                       ": a draft needs the target's vocabulary");
  std::vector<TokenRow> train = reader.rows("train"), holdout = reader.rows("holdout");
  if (o.draft_vocab > draft.vocab_size)
    throw Error(ErrorKind::kUsage, "--draft-vocab " + std::to_string(o.draft_vocab) + ": the target has " +
                                       std::to_string(draft.vocab_size) + " tokens");
  check_tokens(train, draft.vocab_size, o.data);
  check_tokens(holdout, draft.vocab_size, o.data);
  if (s.eagle) forget_second_tokens(train), forget_second_tokens(holdout);
  int64_t longest = 2, context = draft.max_position;
  for (const TokenRow& row : train) longest = std::max(longest, static_cast<int64_t>(row.tokens.size()));
  if (s.target_config) context = std::min(context, s.target_config->max_position);
  if (o.sequence_length > context)
    throw Error(ErrorKind::kUsage, "--sequence-length " + std::to_string(o.sequence_length) + ": the models take " +
                                       std::to_string(context) + " tokens");
  if (o.sequence_length == 0) o.sequence_length = std::min(longest, context);
  s.inputs["data"] = {{"path", o.data}, {"digest", reader.digest()}};
  s.train = prepare_rows(std::move(train), o.sequence_length);
  PreparedRows held_out = prepare_rows(std::move(holdout), context);
  s.limits = {.longest = context, .first_learnt = s.eagle ? 2 : 1};
  const Json unanswered = open_teacher(s, held_out, stages);
  s.answers_anew =
      s.target && s.from.kind == TeacherSpec::Kind::kTarget && o.contexts == "target" &&
      !(reader.index().written_by == "target" && s.target_id && reader.index().target_id == s.target_id->id);
  s.holdout_rows = static_cast<int64_t>(held_out.rows.size());
  s.held_out =
      split_held_out(std::move(held_out.rows),
                     o.evaluate_rows > 0 ? static_cast<size_t>(o.evaluate_rows) : kMaxSelectionRows, kMaxVerdictRows);
  s.data_counts = {{"train_rows", s.train.rows.size()},       {"train_tokens", s.train.tokens},
                   {"loss_tokens", s.train.loss_tokens},      {"cut_rows", s.train.cut_rows},
                   {"cut_tokens", s.train.cut_tokens},        {"empty_rows", s.train.empty_rows},
                   {"holdout_rows", s.holdout_rows},          {"sequence_length", o.sequence_length},
                   {"written_by", reader.index().written_by}, {"contexts", s.answers_anew ? "target" : "data"}};
  if (!unanswered.is_null()) s.data_counts["unanswered_rows"] = unanswered;
  if (s.train.cut_tokens > 0)
    log(LogLevel::kWarn, std::to_string(s.train.cut_rows) + " rows are longer than " +
                             std::to_string(o.sequence_length) + " tokens: " + std::to_string(s.train.cut_tokens) +
                             " tokens are not used");
  if (s.held_out.verdict_conversations < kMinVerdictConversations)
    log(LogLevel::kWarn, "only " +
                             std::to_string(s.held_out.verdict_conversations + s.held_out.selection_conversations) +
                             " held-out conversations: the verdict will be inconclusive (at least " +
                             std::to_string(2 * kMinVerdictConversations) + " are needed)");
}

// Sets max_steps for a run that is limited by epochs.
void count_steps(Setup& s) {
  DistillOptions& o = s.options;
  if (o.max_steps > 0 || o.epochs <= 0 || s.train.rows.empty()) return;
  const Batcher batcher(s.train.rows, o.batch_tokens, o.device.seed);
  // Epochs differ by about a batch, so this takes the mean of the first few.
  const auto looked_at = static_cast<int64_t>(std::clamp(std::ceil(o.epochs), 1.0, 4.0));
  double batches = 0;
  for (int64_t e = 0; e < looked_at; ++e)
    batches += static_cast<double>(batcher.batches_in_epoch(e)) / static_cast<double>(looked_at);
  batches *= o.epochs;
  o.max_steps =
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(batches / static_cast<double>(o.accumulate) - 1e-9)));
}

// Returns the configuration of the draft that will be trained. A pruned draft has the requested number of layers; which
// layers they are does not matter here.
model::DecoderConfig draft_to_train(const Setup& s, model::DecoderConfig draft) {
  if (s.spec.kind != "prune") return draft;
  draft.num_layers = s.spec.layers;
  draft.layers.resize(static_cast<size_t>(s.spec.layers));
  return draft;
}

// Returns an estimate of what autograd keeps of a batch: about twelve rows as wide as the model and five as wide as its
// MLP for each token and layer.
int64_t activation_bytes(const model::DecoderConfig& draft, int64_t tokens, int64_t element) {
  return tokens * draft.num_layers * element * (12 * draft.hidden_size + 5 * draft.intermediate_size);
}

// Throws if the run does not fit into memory or on the disk. For the draft, memory holds the weights in its dtype, and
// gradients, Adam's two moments and, for 16-bit weights, their masters in fp32. It also holds the activations of a
// batch, both models' logits of a chunk (head_loss.h), and the target's cached logits.
void check_memory(const Setup& s, const model::DecoderConfig& draft) {
  const at::ScalarType dtype = model::resolve_dtype(s.options.device.dtype, draft);
  const model::DecoderConfig& target = s.target ? s.target->config : draft;
  model::MemoryPlan plan = model::plan_memory({.target = target,
                                               .target_dtype = dtype,
                                               .draft = &draft,
                                               .draft_dtype = dtype,
                                               .sequences = 0,
                                               .tokens_per_sequence = 0,
                                               .device = s.device});
  const int64_t parameters = s.eagle ? model::num_parameters(eagle_config(s)) : model::num_parameters(draft);
  plan.target_bytes = 0;  // already loaded
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  plan.draft_bytes = parameters * (element + (element < 4 ? 16 : 12));
  const int64_t batch =
      s.options.batch_tokens > 0 ? s.options.batch_tokens : batch_shape(kMostStepTokens, draft.vocab_size).batch_tokens;
  plan.workspace_bytes += activation_bytes(draft, batch, element) +
                          2 * element * std::min(batch, head_loss_rows(draft.vocab_size)) * draft.vocab_size;
  if (s.target && !s.ce && !s.eagle)
    plan.target_cache_bytes = std::min(s.options.teacher_cache_mib << 20, 2 * s.train.loss_tokens * draft.vocab_size);
  log(LogLevel::kInfo, "memory: " + plan.text());
  model::check_memory(plan);
  if (!s.ranks->is_first()) return;
  const uint64_t checkpoint = static_cast<uint64_t>(parameters) * 12, free = free_disk_bytes(s.options.out);
  if (free < 3 * checkpoint)
    throw Error(ErrorKind::kIo, s.options.out + ": " + std::to_string(free >> 20) +
                                    " MiB free, three checkpoints take " + std::to_string(3 * checkpoint >> 20) +
                                    " MiB: free some space or choose another --out");
}

TrainerOptions trainer_options(const Setup& s) {
  const DistillOptions& o = s.options;
  TrainerOptions t;
  t.run_directory = o.out;
  t.loss = {parse_loss(o.loss), o.lk_eta, o.temperature};
  t.adamw = {o.beta1, o.beta2, o.epsilon, o.weight_decay, o.clip};
  t.schedule = {o.learning_rate, o.min_lr_ratio, o.warmup_ratio, o.max_steps, o.time_limit_seconds};
  t.batch_tokens = o.batch_tokens;
  t.accumulate = o.accumulate;
  t.evaluate_every = o.evaluate_every;
  t.checkpoint_every = o.checkpoint_every;
  t.seed = o.device.seed;
  return t;
}

// Restores the best measured checkpoint that is still intact, and returns its step.
int64_t restore_best(const std::vector<Measured>& measured, const CheckpointStore& store, const TrainedDraft& draft) {
  for (const int64_t step : rank_checkpoints(measured)) {
    if (const auto checkpoint = store.open(step)) {
      CheckpointStore::restore(*checkpoint, draft, nullptr);
      return step;
    }
  }
  throw Error(ErrorKind::kModel,
              "the draft gives no finite logits on held-out rows, and none of its checkpoints is whole");
}

// Returns the exit code of a run that has ended already, from its result.json. Any verdict but improved and
// no_significant_gain counts as inconclusive.
int exit_code_of(const Json& done, const std::string& where) {
  const auto verdict = verdict_named(json_string(done, "verdict", where, ErrorKind::kData));
  const bool is_decided = verdict == Verdict::kImproved || verdict == Verdict::kNoSignificantGain;
  return exit_code(is_decided ? *verdict : Verdict::kInconclusive);
}

DistillResult no_data(const Setup& s, const std::string& started) {
  Json json = {{"schema", "specdec.distill/1"},
               {"verdict", Verdict::kInconclusive},
               {"reason", "no row has a token to learn: " + s.options.data + " holds too little data"},
               {"started", started},
               {"seconds", 0},
               {"tool_version", kToolVersion},
               {"inputs", s.inputs},
               {"options", describe(s.options)},
               {"data", s.data_counts},
               {"next", next_step(Verdict::kInconclusive, s.options, false).command},
               {"next_reason", next_step(Verdict::kInconclusive, s.options, false).reason}};
  if (s.ranks->is_first()) write_file_atomic(fs::path(s.options.out) / "result.json", json.dump(2) + "\n");
  return {json, exit_code(Verdict::kInconclusive)};
}

// The state that training starts from; a resumed run takes it from its checkpoint.
struct Start {
  DraftInit init;
  std::optional<Checkpoint> checkpoint;
  // TrainerOptions::extra, chosen and measured before the first step: {"before", "search", "chosen", "selection_rows",
  // "verdict_rows", "evaluations"}
  Json kept;
};

// Lets the target answer the held-out prompts, and keeps the answers in RUN.
HeldOutAnswers answer_prompts(const Setup& s, const HeldOut& held_out, Stages& stages) {
  stages.begin("answering held-out prompts");
  const EvaluationStep step = stages.step();
  const HeldOutAnswers answers = answer_held_out(s.target, held_out, {s.options.temperature, s.options.device.seed},
                                                 [&](const Progress& p) { step(p.total > 0 ? p.done / p.total : 0); });
  write_file_atomic(fs::path(s.options.out) / kContextsFile, to_json(answers).dump() + "\n");
  return answers;
}

Start start_anew(Setup& s, Stages& stages, const Clock& clock) {
  const model::DecoderConfig draft = draft_config(s);
  const model::EagleConfig eagle = s.eagle ? eagle_config(s) : model::EagleConfig();
  PreparationInput input{s.options, s.spec, s.target, s.teacher.get(), draft, s.device, s.train};
  input.limits = s.limits;
  input.eagle = s.eagle ? &eagle : nullptr;
  input.ranks = s.ranks;
  if (s.answers_anew) input.answer = [&](const HeldOut& held_out) { return answer_prompts(s, held_out, stages); };
  Preparation prepared = prepare(input, s.held_out, stages, clock);
  Json kept = {{"before", to_json(prepared.before)},
               {"search", prepared.init.search},
               {"selection_rows", prepared.selection_rows},
               {"verdict_rows", prepared.verdict_rows},
               {"evaluations", prepared.evaluations}};
  return {std::move(prepared.init), std::nullopt, std::move(kept)};
}

// Rank 0 gives the checkpoint, the others an empty one.
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
          json_int(kept, "verdict_rows", {1, INT64_MAX}, where, ErrorKind::kData));
  if (s.answers_anew) {
    const std::string file = (fs::path(s.options.out) / kContextsFile).string();
    const std::string text = s.ranks->broadcast(s.ranks->is_first() ? read_json(file).dump() : "");
    put_answers(answers_from_json(parse_json(text, file), s.target->config.vocab_size, file), s.limits, file,
                s.held_out);
  }
  if (s.eagle) {
    const DraftSpec saved{"model", checkpoint.directory.string()};
    const std::string dtype =
        model::dtype_flag(model::load_eagle_config(checkpoint.directory, s.target->config).layer.dtype);
    return {init_draft({.spec = saved,
                        .dtype = dtype,
                        .device = s.device,
                        .ttt_steps = s.options.ttt_steps,
                        .ttt_decay = s.options.ttt_decay},
                       s.target, {}),
            checkpoint, kept};
  }
  DraftInit init;
  if (s.ranks->is_first())
    init.decoder =
        model::load_decoder(checkpoint.directory, s.device, model::load_decoder_config(checkpoint.directory).dtype);
  init.decoder = share_decoder(std::move(init.decoder), *s.ranks, s.device);
  return {std::move(init), checkpoint, kept};
}

// Sets the options that were left open: those of the run that is resumed, or what rank 0 chooses.
void settle(Setup& s, Start& start, Teacher* teacher, Stages& stages, const Clock& clock) {
  if (!start.kept.contains("chosen")) {
    const TrainedDraft draft = start.init.draft();
    const StepInput input{draft.source(teacher, trainer_options(s).loss), draft.trainable(), s.train.rows,
                          s.ranks->count()};
    const Json chosen = s.ranks->is_first()
                            ? choose_settings(s.options, run_limits(s.options, s.train.tokens), input, stages, clock)
                            : Json();
    start.kept["chosen"] = Json::parse(s.ranks->broadcast(chosen.dump()));
  }
  apply_settings(start.kept.at("chosen"), s.options);
  count_steps(s);
}

TrainingSummary train(Setup& s, Start& start, Stages& stages, const ProgressFn& progress, const Clock& clock) {
  std::unique_ptr<Teacher> teacher, judge;
  const int64_t cache = s.options.teacher_cache_mib << 20;
  if (s.from.kind != TeacherSpec::Kind::kTarget) s.target.reset();  // the draft has its layers now
  // A head's step takes the target's logits from the pass that gives the hidden states.
  if (!s.ce) teacher = s.teacher->teach(s.train.rows, s.eagle ? 0 : cache);
  if (s.teacher) judge = s.teacher->teach(s.held_out.selection, cache);
  settle(s, start, teacher.get(), stages, clock);
  TrainerOptions options = trainer_options(s);
  options.extra = start.kept;
  options.evaluations = start.kept.value("evaluations", kMostEvaluations);
  Trainer trainer(options, {&s.train.rows, &s.held_out.selection, teacher.get(), judge.get(), s.ranks},
                  start.init.draft(), clock, progress);
  if (start.checkpoint) trainer.resume(*start.checkpoint);
  stages.begin(start.checkpoint ? "going on" : "measuring and saving the start");
  return trainer.run();
}

// Judges the draft on the figures that all ranks measured, and publishes it. Rank 0 does this.
DistillResult finish(const Setup& s, const TrainedDraft& draft, Outcome& outcome, double begin, const Clock& clock) {
  const fs::path out = s.options.out;
  outcome.by_acceptance = s.teacher != nullptr;
  outcome.judgement = distill::judge(s.held_out.verdict, outcome.before, outcome.after, outcome.by_acceptance);
  outcome.verdict_conversations = s.held_out.verdict_conversations;
  outcome.selection_conversations = s.held_out.selection_conversations;
  outcome.selection_requests = static_cast<int64_t>(s.held_out.selection.size());
  outcome.inputs = s.inputs;
  outcome.data_counts = s.data_counts;
  if (const std::vector<int32_t>& ids = draft.config().draft_vocab; !ids.empty())
    outcome.vocabulary = {{"tokens", ids.size()},
                          {"train", vocab_coverage(s.train.rows, ids)},
                          {"holdout", vocab_coverage(s.held_out.verdict, ids)}};
  outcome.seconds = clock.seconds() - begin;
  publish_draft(draft, s.options, s.target_id, result_json(outcome, s.options, std::nullopt));
  const Json json = result_json(outcome, s.options, fingerprint_model(out / "draft"));
  write_file_atomic(out / "result.json", json.dump(2) + "\n");
  return {json, exit_code(outcome.judgement.verdict)};
}

DistillResult train_and_judge(Setup& s, const ProgressFn& progress, const Clock& clock, const std::string& started) {
  const Ranks& ranks = *s.ranks;
  const double begin = clock.seconds();
  Stages stages(progress);
  std::optional<CheckpointStore> store;
  if (ranks.is_first()) store.emplace(fs::path(s.options.out) / "checkpoints");
  auto checkpoint = s.options.resume && store ? store->newest_good() : std::nullopt;
  const bool resumes = ranks.any(checkpoint.has_value());
  Start start = resumes ? go_on(s, checkpoint.value_or(Checkpoint{}), stages) : start_anew(s, stages, clock);
  Outcome outcome;
  outcome.before = evaluation_from_json(start.kept.at("before"));
  outcome.search = start.kept.at("search");
  outcome.started = started;
  outcome.training = train(s, start, stages, progress, clock);
  const TrainedDraft draft = start.init.draft();
  outcome.chosen = start.kept["chosen"];
  if (store) outcome.kept_step = restore_best(outcome.training.measured, *store, draft);
  share_weights(draft, ranks);
  stages.begin("judging");
  const EvaluationOptions measured{.temperature = s.options.temperature, .step = stages.step(), .ranks = s.ranks};
  outcome.after = s.teacher ? evaluate(draft, *s.teacher->teach(s.held_out.verdict, 0), s.held_out.verdict, measured)
                            : evaluate(draft, nullptr, s.held_out.verdict, measured);
  DistillResult result;
  if (ranks.is_first()) result = finish(s, draft, outcome, begin, clock);
  result.exit_code = std::stoi(ranks.broadcast(std::to_string(result.exit_code)));
  return result;
}

// Throws Error(kUsage) unless this rank has the options and inputs of rank 0.
void compare_with_first(const Setup& s) {
  const Json own = {{"options", s.given}, {"inputs", s.inputs}, {"tool_version", kToolVersion}};
  const std::string keys = differing_keys(Json::parse(s.ranks->broadcast(own.dump())), own);
  if (!keys.empty())
    throw Error(ErrorKind::kUsage, "all ranks need the same options and inputs; rank 0 has others: " + keys);
}

}  // namespace

void check_output(const DistillOptions& options) {
  const bool has_run = check_output_directory(
      options.out, {.flag = "--out", .command = "specdec distill", .results = {{"run.json", "distill_run"}}});
  if (has_run && !options.resume)
    throw Error(ErrorKind::kUsage, "--out " + options.out +
                                       ": has an earlier run of specdec distill: --resume goes on with it; for a new "
                                       "run give a new or an empty directory");
}

DistillResult run(const DistillOptions& options, const ProgressFn& progress, const Clock& clock, const Ranks& ranks) {
  validate(options);
  const std::string started = format_utc(clock.unix_seconds());
  Setup s;
  s.options = options;
  s.ranks = &ranks;
  s.spec = parse_draft_spec(options.draft);
  s.from = parse_teacher(options.teacher);
  s.eagle = is_eagle(s.spec);
  if (s.eagle && s.from.kind != TeacherSpec::Kind::kTarget)
    throw Error(ErrorKind::kUsage, "--teacher " + options.teacher +
                                       ": an EAGLE-3 head is trained from the target itself: leave --teacher out");
  if (s.eagle && ranks.count() > 1)
    throw Error(ErrorKind::kUsage, "--draft " + options.draft + ": an EAGLE-3 head is trained by one process, and " +
                                       std::to_string(ranks.count()) + " were started");
  if (s.from.kind == TeacherSpec::Kind::kEndpoint)
    throw Error(ErrorKind::kInternal, "--teacher URL: the endpoint's labels must be written first");
  s.ce = !parse_loss(options.loss).needs_target();
  if (ranks.is_first()) check_output(options);
  const fs::path out = options.out;
  if (options.device.threads > 0) at::set_num_threads(options.device.threads);
  const ProgressFn shown = ranks.is_first() ? progress : ProgressFn();
  Stages stages(shown);
  stages.begin("loading the target", options.target);
  load_target(s);
  const model::DecoderConfig draft = draft_config(s);
  stages.begin("reading the data", options.data);
  load_data(s, draft, stages);
  if (s.options.max_steps == 0 && s.options.epochs == 0 && s.options.time_limit_seconds == 0) s.options.epochs = 3;
  s.given = describe(s.options);
  compare_with_first(s);
  std::optional<RunDirectory> directory;
  DistillResult done;
  if (ranks.is_first()) {
    directory.emplace(out);
    directory->enter(s.given, s.inputs);
    remove_partials(out, 0);  // files of a killed run; the lock ensures that no process is writing them
    if (fs::exists(out / "result.json")) {
      done.json = read_json(out / "result.json");
      require_schema(done.json, "distill", 1, (out / "result.json").string());
      done.exit_code = exit_code_of(done.json, (out / "result.json").string());
    }
  }
  const std::string ended = ranks.broadcast(done.json.is_null() ? "" : std::to_string(done.exit_code));
  if (!ended.empty()) return {done.json, std::stoi(ended)};
  check_memory(s, draft_to_train(s, draft));
  DistillResult result = s.train.rows.empty() ? no_data(s, started) : train_and_judge(s, shown, clock, started);
  if (directory) directory->keep();
  return result;
}

}  // namespace specdec::distill
