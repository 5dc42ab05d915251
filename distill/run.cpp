#include "distill/run.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/file_lock.h"
#include "base/log.h"
#include "base/output_directory.h"
#include "base/verdict.h"
#include "base/version.h"
#include "data/shard_reader.h"
#include "distill/draft_vocab.h"
#include "distill/open_teacher.h"
#include "distill/output.h"
#include "distill/preparation.h"
#include "distill/trainer.h"
#include "engine/model/draft_vocab.h"
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
  std::shared_ptr<const model::Decoder> target;       // null: its layers are not needed
  std::optional<model::DecoderConfig> target_config;  // empty: cross entropy alone
  std::unique_ptr<TeacherSource> teacher;             // null: cross entropy alone
  std::optional<Fingerprint> target_id;               // empty if the target has no weights
  PreparedRows train;
  HeldOut held_out;
  int64_t holdout_rows = 0;
  Json given;  // the options that --resume compares
  Json inputs, data_counts;
  at::Device device = at::kCPU;
};

// Makes RUN and locks it. If the run fails before its first checkpoint, the destructor removes RUN, or the content of a
// RUN that existed and was empty: nothing in it is worth resuming, and the corrected command finds it as the first one
// did.
class RunDirectory {
 public:
  explicit RunDirectory(fs::path run) : run_(std::move(run)), existed_(fs::exists(run_)) {
    make_private_directory(run_);
    lock_.emplace(run_ / ".lock");
    is_new_ = !fs::exists(run_ / "run.json");
  }
  ~RunDirectory() {
    try {
      if (!is_new_ || has_checkpoint()) return;
      std::vector<fs::path> entries;
      for (const auto& entry : fs::directory_iterator(run_))
        if (is_own(entry.path().filename().string())) entries.push_back(entry.path());
      for (const fs::path& entry : entries) remove_tree(entry);
      // These go last: whatever else is left, the directory stays one that --resume takes, and it stays locked.
      for (const char* last : {"run.json", ".lock"}) remove_tree(run_ / last);
      std::error_code not_empty;  // what others have put into it stays
      if (!existed_) fs::remove(run_, not_empty);
    } catch (const std::exception&) {  // the error that ended the run is the one to report
    }
  }
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  void keep() { is_new_ = false; }

 private:
  bool has_checkpoint() const {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(run_ / "checkpoints", none))
      if (entry.path().filename().string().starts_with("step-")) return true;
    return false;
  }
  // Returns whether a run writes this, run.json and .lock apart.
  static bool is_own(const std::string& name) {
    return name == "checkpoints" || name == "metrics.jsonl" || name == "draft" ||
           name.starts_with("events.out.tfevents") || name == "result.json" || name == "report.html";
  }

  fs::path run_;
  bool existed_, is_new_ = false;
  std::optional<FileLock> lock_;
};

// Writes run.json into an empty RUN. If RUN has a run.json already, throws Error(kUsage) if its options or inputs
// differ.
void enter_run_directory(const Setup& setup) {
  const fs::path out = setup.options.out;
  const Json now = {{"schema", "specdec.distill_run/1"},
                    {"options", setup.given},
                    {"inputs", setup.inputs},
                    {"tool_version", kToolVersion}};
  if (fs::exists(out / "run.json")) {
    Json then = read_json(out / "run.json");
    then["tool_version"] = now["tool_version"];
    const std::string keys = differing_keys(then, now);
    if (!keys.empty())
      throw Error(
          ErrorKind::kUsage,
          out.string() + ": --resume needs the options and inputs the run was started with; these differ: " + keys);
    return;
  }
  write_file_atomic(out / "run.json", now.dump(2) + "\n");
}

void load_target(Setup& s) {
  const DistillOptions& o = s.options;
  s.device = model::resolve_device(o.device.device);
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

model::DecoderConfig draft_config(const Setup& s) {
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
  const Json unanswered = open_teacher(s, held_out, stages);
  s.holdout_rows = static_cast<int64_t>(held_out.rows.size());
  s.held_out =
      split_held_out(std::move(held_out.rows),
                     o.evaluate_rows > 0 ? static_cast<size_t>(o.evaluate_rows) : kMaxSelectionRows, kMaxVerdictRows);
  s.data_counts = {{"train_rows", s.train.rows.size()},      {"train_tokens", s.train.tokens},
                   {"loss_tokens", s.train.loss_tokens},     {"cut_rows", s.train.cut_rows},
                   {"cut_tokens", s.train.cut_tokens},       {"empty_rows", s.train.empty_rows},
                   {"holdout_rows", s.holdout_rows},         {"sequence_length", o.sequence_length},
                   {"written_by", reader.index().written_by}};
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

// Throws if the run does not fit into memory or on the disk. For the draft, memory holds weights and gradients in its
// dtype, and master weights and Adam's two moments in fp32. It also holds both models' logits of a batch with their
// gradients, and the target's cached logits.
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
  const int64_t parameters = model::num_parameters(draft);
  plan.target_bytes = 0;  // already loaded
  plan.draft_bytes = parameters * (12 + 2 * static_cast<int64_t>(c10::elementSize(dtype)));
  const int64_t batch =
      s.options.batch_tokens > 0 ? s.options.batch_tokens : batch_shape(kMostStepTokens, draft.vocab_size).batch_tokens;
  plan.workspace_bytes += 3 * 4 * batch * draft.vocab_size;
  if (s.target && !s.ce)
    plan.target_cache_bytes = std::min(s.options.teacher_cache_mib << 20, 2 * s.train.loss_tokens * draft.vocab_size);
  log(LogLevel::kInfo, "memory: " + plan.text());
  model::check_memory(plan);
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

GradientSource gradient_source(const Setup& s, const model::Decoder& draft, Teacher* teacher) {
  const std::vector<int32_t>& kept = draft.config.draft_vocab;
  return {&draft, teacher, trainer_options(s).loss,
          kept.empty() ? at::Tensor() : model::draft_vocab_index(kept, at::kCPU)};
}

// Restores the best measured checkpoint that is still intact, and returns its step.
int64_t restore_best(const std::vector<Measured>& measured, const CheckpointStore& store, model::Decoder& draft) {
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
  write_file_atomic(fs::path(s.options.out) / "result.json", json.dump(2) + "\n");
  return {json, exit_code(Verdict::kInconclusive)};
}

// The state that training starts from; a resumed run takes it from its checkpoint.
struct Start {
  model::Decoder draft;
  std::optional<Checkpoint> checkpoint;
  // TrainerOptions::extra, chosen and measured before the first step: {"before", "search", "chosen", "selection_rows",
  // "verdict_rows", "evaluations"}
  Json kept;
};

Start start_anew(Setup& s, Stages& stages, const Clock& clock) {
  Preparation prepared = prepare({s.options, s.spec, s.target, s.teacher.get(), draft_config(s), s.device, s.train},
                                 s.held_out, stages, clock);
  return {std::move(prepared.init.decoder),
          std::nullopt,
          {{"before", to_json(prepared.before)},
           {"search", prepared.init.search},
           {"selection_rows", prepared.selection_rows},
           {"verdict_rows", prepared.verdict_rows},
           {"evaluations", prepared.evaluations}}};
}

Start go_on(Setup& s, const Checkpoint& checkpoint, Stages& stages) {
  stages.begin("reading the checkpoint of step " + std::to_string(checkpoint.step));
  const Json kept = checkpoint.state.value("extra", Json::object());
  const std::string where = (checkpoint.directory / "state.json").string();
  for (const char* key : {"before", "search", "chosen"})
    if (!kept.contains(key))
      throw Error(ErrorKind::kData, where + ": extra." + key +
                                        " is missing: an earlier version wrote it; start again with another --out");
  shorten(s.held_out, json_int(kept, "selection_rows", {1, INT64_MAX}, where, ErrorKind::kData),
          json_int(kept, "verdict_rows", {1, INT64_MAX}, where, ErrorKind::kData));
  const model::DecoderConfig config = model::load_decoder_config(checkpoint.directory);
  return {model::load_decoder(checkpoint.directory, s.device, config.dtype), checkpoint, kept};
}

DistillResult train_and_judge(Setup& s, const ProgressFn& progress, const Clock& clock, const std::string& started) {
  const fs::path out = s.options.out;
  const double begin = clock.seconds();
  Stages stages(progress);
  CheckpointStore store(out / "checkpoints");
  const auto checkpoint = s.options.resume ? store.newest_good() : std::nullopt;
  Start start = checkpoint ? go_on(s, *checkpoint, stages) : start_anew(s, stages, clock);
  model::Decoder& draft = start.draft;
  Outcome outcome;
  outcome.before = evaluation_from_json(start.kept.at("before"));
  outcome.search = start.kept.at("search");
  std::unique_ptr<Teacher> teacher, judge;
  const int64_t cache = s.options.teacher_cache_mib << 20;
  if (s.from.kind != TeacherSpec::Kind::kTarget) s.target.reset();  // the draft has its layers now
  if (!s.ce) teacher = s.teacher->teach(s.train.rows, cache);
  if (s.teacher) judge = s.teacher->teach(s.held_out.selection, cache);
  {
    if (start.kept.contains("chosen"))
      apply_settings(start.kept.at("chosen"), s.options);
    else
      start.kept["chosen"] =
          choose_settings(s.options, run_limits(s.options, s.train.tokens),
                          {gradient_source(s, draft, teacher.get()), trainable(draft), s.train.rows}, stages, clock);
    count_steps(s);
    TrainerOptions options = trainer_options(s);
    options.extra = start.kept;
    options.evaluations = start.kept.value("evaluations", kMostEvaluations);
    outcome.chosen = start.kept["chosen"];
    Trainer trainer(options, {&s.train.rows, &s.held_out.selection, teacher.get(), judge.get()}, draft, clock,
                    progress);
    if (checkpoint) trainer.resume(*checkpoint);
    stages.begin(checkpoint ? "going on" : "measuring and saving the start");
    outcome.training = trainer.run();
  }
  teacher.reset();
  judge.reset();
  outcome.kept_step = restore_best(outcome.training.measured, store, draft);
  stages.begin("judging");
  const EvaluationOptions measured{.temperature = s.options.temperature, .step = stages.step()};
  outcome.after = s.teacher ? evaluate(draft, *s.teacher->teach(s.held_out.verdict, 0), s.held_out.verdict, measured)
                            : evaluate(draft, nullptr, s.held_out.verdict, measured);
  outcome.by_acceptance = s.teacher != nullptr;
  outcome.judgement = distill::judge(s.held_out.verdict, outcome.before, outcome.after, outcome.by_acceptance);
  outcome.verdict_conversations = s.held_out.verdict_conversations;
  outcome.selection_conversations = s.held_out.selection_conversations;
  outcome.selection_requests = static_cast<int64_t>(s.held_out.selection.size());
  outcome.inputs = s.inputs;
  outcome.data_counts = s.data_counts;
  if (!draft.config.draft_vocab.empty())
    outcome.vocabulary = {{"tokens", draft.config.draft_vocab.size()},
                          {"train", vocab_coverage(s.train.rows, draft.config.draft_vocab)},
                          {"holdout", vocab_coverage(s.held_out.verdict, draft.config.draft_vocab)}};
  outcome.started = started;
  outcome.seconds = clock.seconds() - begin;
  publish_draft(draft, s.options, s.target_id, result_json(outcome, s.options, std::nullopt));
  const Json json = result_json(outcome, s.options, fingerprint_model(out / "draft"));
  write_file_atomic(out / "result.json", json.dump(2) + "\n");
  return {json, exit_code(outcome.judgement.verdict)};
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

DistillResult run(const DistillOptions& options, const ProgressFn& progress, const Clock& clock) {
  validate(options);
  const std::string started = format_utc(clock.unix_seconds());
  Setup s;
  s.options = options;
  s.spec = parse_draft_spec(options.draft);
  s.from = parse_teacher(options.teacher);
  if (s.from.kind == TeacherSpec::Kind::kEndpoint)
    throw Error(ErrorKind::kInternal, "--teacher URL: the endpoint's labels must be written first");
  s.ce = !parse_loss(options.loss).needs_target();
  check_output(options);
  const fs::path out = options.out;
  if (options.device.threads > 0) at::set_num_threads(options.device.threads);
  Stages stages(progress);
  stages.begin("loading the target", options.target);
  load_target(s);
  const model::DecoderConfig draft = draft_config(s);
  stages.begin("reading the data", options.data);
  load_data(s, draft, stages);
  if (s.options.max_steps == 0 && s.options.epochs == 0 && s.options.time_limit_seconds == 0) s.options.epochs = 3;
  s.given = describe(s.options);
  RunDirectory directory(out);
  enter_run_directory(s);
  remove_partials(out, 0);  // files of a killed run; the lock ensures that no process is writing them
  if (fs::exists(out / "result.json")) {
    const Json done = read_json(out / "result.json");
    require_schema(done, "distill", 1, (out / "result.json").string());
    return {done, exit_code_of(done, (out / "result.json").string())};
  }
  check_memory(s, draft_to_train(s, draft));
  DistillResult result = s.train.rows.empty() ? no_data(s, started) : train_and_judge(s, progress, clock, started);
  directory.keep();
  return result;
}

}  // namespace specdec::distill
