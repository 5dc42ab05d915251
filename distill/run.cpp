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
#include "distill/output.h"
#include "distill/preparation.h"
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
  bool ce = false;
  bool eagle = false;                            // the draft is an EAGLE-3 head
  std::shared_ptr<const model::Decoder> target;  // null: cross entropy alone
  std::optional<Fingerprint> target_id;          // empty if the target has no weights
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
  if (s.ce && (itself || !has_weights(directory))) return;
  s.target_id = fingerprint_model(directory);
  s.inputs["target"]["id"] = s.target_id->id;
  const model::DecoderConfig config = model::load_decoder_config(directory);
  const auto target = std::make_shared<model::Decoder>(
      model::load_decoder(directory, s.device, model::resolve_dtype(o.device.dtype, config)));
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

void load_data(Setup& s, const model::DecoderConfig& draft) {
  DistillOptions& o = s.options;
  const data::ShardReader reader(o.data);
  const std::string tokenizer = s.inputs["target"]["tokenizer"];
  if (reader.index().tokenizer_digest != tokenizer)
    throw Error(ErrorKind::kData, o.data + ": tokenised by another tokenizer (" +
                                      reader.index().tokenizer_digest.substr(0, 12) + ") than the target's (" +
                                      tokenizer.substr(0, 12) + "): run `specdec data ingest` again with --target " +
                                      o.target);
  if (s.target && s.target->config.vocab_size != draft.vocab_size)
    throw Error(ErrorKind::kModel, "--draft " + o.draft + ": vocab_size " + std::to_string(draft.vocab_size) +
                                       ", the target has " + std::to_string(s.target->config.vocab_size) +
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
  if (s.target) context = std::min(context, s.target->config.max_position);
  if (o.sequence_length > context)
    throw Error(ErrorKind::kUsage, "--sequence-length " + std::to_string(o.sequence_length) + ": the models take " +
                                       std::to_string(context) + " tokens");
  if (o.sequence_length == 0) o.sequence_length = std::min(longest, context);
  s.train = prepare_rows(std::move(train), o.sequence_length);
  PreparedRows held_out = prepare_rows(std::move(holdout), context);
  s.holdout_rows = static_cast<int64_t>(held_out.rows.size());
  s.held_out =
      split_held_out(std::move(held_out.rows),
                     o.evaluate_rows > 0 ? static_cast<size_t>(o.evaluate_rows) : kMaxSelectionRows, kMaxVerdictRows);
  s.inputs["data"] = {{"path", o.data}, {"digest", reader.digest()}};
  s.data_counts = {{"train_rows", s.train.rows.size()},      {"train_tokens", s.train.tokens},
                   {"loss_tokens", s.train.loss_tokens},     {"cut_rows", s.train.cut_rows},
                   {"cut_tokens", s.train.cut_tokens},       {"empty_rows", s.train.empty_rows},
                   {"holdout_rows", s.holdout_rows},         {"sequence_length", o.sequence_length},
                   {"written_by", reader.index().written_by}};
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
  const int64_t parameters = s.eagle ? model::num_parameters(eagle_config(s)) : model::num_parameters(draft);
  plan.target_bytes = 0;  // already loaded
  plan.draft_bytes = parameters * (12 + 2 * static_cast<int64_t>(c10::elementSize(dtype)));
  const int64_t batch =
      s.options.batch_tokens > 0 ? s.options.batch_tokens : batch_shape(kMostStepTokens, draft.vocab_size).batch_tokens;
  plan.workspace_bytes += 3 * 4 * batch * draft.vocab_size;
  if (s.target && !s.ce && !s.eagle)
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
  write_file_atomic(fs::path(s.options.out) / "result.json", json.dump(2) + "\n");
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

Start start_anew(Setup& s, Stages& stages, const Clock& clock) {
  const model::EagleConfig eagle = s.eagle ? eagle_config(s) : model::EagleConfig();
  Preparation prepared =
      prepare({s.options, s.spec, s.target, draft_config(s), s.device, s.train, s.eagle ? &eagle : nullptr}, s.held_out,
              stages, clock);
  Json kept = {{"before", to_json(prepared.before)},
               {"search", prepared.init.search},
               {"selection_rows", prepared.selection_rows},
               {"verdict_rows", prepared.verdict_rows},
               {"evaluations", prepared.evaluations}};
  return {std::move(prepared.init), std::nullopt, std::move(kept)};
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
  const model::DecoderConfig config = model::load_decoder_config(checkpoint.directory);
  return {{model::load_decoder(checkpoint.directory, s.device, config.dtype), nullptr, nullptr}, checkpoint, kept};
}

DistillResult train_and_judge(Setup& s, const ProgressFn& progress, const Clock& clock, const std::string& started) {
  const fs::path out = s.options.out;
  const double begin = clock.seconds();
  Stages stages(progress);
  CheckpointStore store(out / "checkpoints");
  const auto checkpoint = s.options.resume ? store.newest_good() : std::nullopt;
  Start start = checkpoint ? go_on(s, *checkpoint, stages) : start_anew(s, stages, clock);
  const TrainedDraft draft = start.init.draft();
  Outcome outcome;
  outcome.before = evaluation_from_json(start.kept.at("before"));
  outcome.search = start.kept.at("search");
  std::unique_ptr<Teacher> teacher, judge;
  const int64_t cache = s.options.teacher_cache_mib << 20;
  // A head's step takes the target's logits from the pass that gives the hidden states.
  if (!s.ce) teacher = std::make_unique<Teacher>(s.target, s.train.rows, s.eagle ? 0 : cache);
  if (s.target) judge = std::make_unique<Teacher>(s.target, s.held_out.selection, cache);
  {
    if (start.kept.contains("chosen"))
      apply_settings(start.kept.at("chosen"), s.options);
    else
      start.kept["chosen"] = choose_settings(
          s.options, run_limits(s.options, s.train.tokens),
          {draft.source(teacher.get(), trainer_options(s).loss), draft.trainable(), s.train.rows}, stages, clock);
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
  outcome.after = evaluate(draft, s.target.get(), s.held_out.verdict,
                           {.temperature = s.options.temperature, .step = stages.step()});
  outcome.by_acceptance = s.target != nullptr;
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
  s.eagle = is_eagle(s.spec);
  s.ce = !parse_loss(options.loss).needs_target();
  check_output(options);
  const fs::path out = options.out;
  if (options.device.threads > 0) at::set_num_threads(options.device.threads);
  Stages stages(progress);
  stages.begin("loading the target", options.target);
  load_target(s);
  const model::DecoderConfig draft = draft_config(s);
  stages.begin("reading the data", options.data);
  load_data(s, draft);
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
