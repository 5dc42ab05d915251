#include "distill/run/setup.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/safetensors.h"
#include "base/sha256.h"
#include "data/shards/shard_reader.h"
#include "distill/run/run.h"
#include "distill/run/run_directory.h"
#include "distill/teacher/as_served.h"
#include "distill/teacher/head_loss.h"
#include "engine/forward/memory_plan.h"
#include "engine/parallel/shard_ranks.h"

namespace specdec::distill {

namespace {

constexpr size_t kMaxSelectionRows = 64, kMaxVerdictRows = 1000;

void check_tokens(const std::vector<TokenRow>& rows, int64_t vocab, const std::string& where) {
  for (const TokenRow& row : rows)
    for (const int32_t t : row.tokens)
      if (t < 0 || t >= vocab)
        throw Error(ErrorKind::kData, where + ": row " + row.id + ": token id " + std::to_string(t) +
                                          " is outside the vocabulary of " + std::to_string(vocab));
}

// Masks the second token of each row. A head pairs the hidden state at position t with token t + 1 and predicts token t
// + 2, so it cannot predict token 1.
void forget_second_tokens(std::vector<TokenRow>& rows) {
  for (TokenRow& row : rows)
    if (row.loss_mask.size() > 1) row.loss_mask[1] = 0;
}

// Opens the teacher and drops the rows for which it has no answer. Returns the numbers of dropped rows as JSON; null if
// the target itself is the teacher.
Json open_teacher(Setup& s, PreparedRows& held_out, Stages& stages) {
  if (!s.target_config) return nullptr;
  if (s.from.kind == TeacherSpec::Kind::kTarget) {
    s.teacher = std::make_unique<ModelSource>(s.target, s.divided);
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

// Returns the configuration of the draft that will be trained. For prune:N only the number of layers is changed,
// because the configuration is the same whichever layers are kept.
model::DecoderConfig draft_to_train(const Setup& s, model::DecoderConfig draft) {
  if (s.spec.kind != "prune") return draft;
  draft.num_layers = s.spec.layers;
  draft.layers.resize(static_cast<size_t>(s.spec.layers));
  return draft;
}

// Estimates the bytes of the activations that autograd keeps for a batch. Per token and layer, autograd keeps about 12
// vectors of hidden_size and 5 of intermediate_size. With `recompute`, it keeps one vector of hidden_size per layer,
// and the full set for one layer at a time.
int64_t activation_bytes(const model::DecoderConfig& draft, int64_t tokens, int64_t element, bool recompute) {
  const int64_t layer = 12 * draft.hidden_size + 5 * draft.intermediate_size, layers = draft.num_layers;
  return tokens * element * (recompute ? layers * draft.hidden_size + layer : layers * layer);
}

}  // namespace

std::vector<TokenRow> sample_rows(std::vector<TokenRow> rows, double share, uint64_t seed) {
  const auto wanted = static_cast<size_t>(std::max(1.0, std::round(share * static_cast<double>(rows.size()))));
  if (wanted >= rows.size()) return rows;
  std::vector<std::pair<std::string, size_t>> order;
  for (size_t i = 0; i < rows.size(); ++i) {
    const TokenRow& row = rows[i];
    const std::string& name = row.conversation.empty() ? row.id : row.conversation;
    order.emplace_back(sha256_hex(std::to_string(seed) + ":" + name), i);
  }
  std::sort(order.begin(), order.end());
  std::vector<size_t> chosen;
  for (size_t i = 0; i < wanted; ++i) chosen.push_back(order[i].second);
  std::sort(chosen.begin(), chosen.end());
  std::vector<TokenRow> out;
  for (const size_t i : chosen) out.push_back(std::move(rows[i]));
  return out;
}

Setup begin_setup(const DistillOptions& options) {
  validate(options);
  Setup s;
  s.options = s.asked = options;
  s.spec = parse_draft_spec(options.draft);
  s.from = parse_teacher(options.teacher);
  s.head = head_kind(s.spec);
  s.ce = !parse_loss(options.loss).needs_target();
  if (s.head && s.from.kind != TeacherSpec::Kind::kTarget)
    throw Error(ErrorKind::kUsage, "--teacher " + options.teacher + ": " + name_of(s.head->kind) +
                                       " is trained from the target itself: leave --teacher out");
  // An existing head must satisfy the same limits as a new head.
  if (s.head && s.spec.kind == "model") {
    DistillOptions as_new = options;
    const auto* const made = std::ranges::find(kNewHeads, s.head->kind, &NewHead::kind);
    if (made != std::end(kNewHeads)) as_new.draft = made->draft;
    validate(as_new);
  }
  const fs::path directory = options.target;
  s.inputs["target"] = {{"path", options.target}, {"id", ""}, {"tokenizer", tokenizer_digest(directory)}};
  // With the loss "ce" the draft learns from the text alone, and the target is needed only to measure acceptance. The
  // target is not loaded if it has no weights, or if the initial draft is the target itself.
  const bool itself =
      s.spec.kind == "model" && fs::weakly_canonical(s.spec.argument) == fs::weakly_canonical(directory);
  const bool here = s.from.kind == TeacherSpec::Kind::kTarget;
  if (here && s.ce && (itself || !has_weights(directory))) return s;
  s.target_config = model::load_decoder_config(directory);
  s.target_config->draft_vocab.clear();
  model::add_eos_id(*s.target_config, s.options.tokenizer_end);
  return s;
}

void take_over_options(Setup& s) {
  const Json then = RunDirectory::options_of(s.options.out);
  if (then.is_null()) return;
  const std::string where = (fs::path(s.options.out) / "run.json").string() + ": options";
  s.begun_dtype = json_string(then, "dtype", where, ErrorKind::kData);
  const std::string contexts =
      then.contains("contexts") ? json_string(then, "contexts", where, ErrorKind::kData) : kContextsOfEarlierRuns;
  if (contexts != kContextsOfEarlierRuns || s.options.contexts == kContextsOfEarlierRuns) return;
  log(LogLevel::kWarn,
      s.options.out + " was measured on the data's own answers so far and goes on with --contexts data");
  s.options.contexts = kContextsOfEarlierRuns;
}

namespace {

// Throws Error(kUsage) unless all ranks have the same --teacher-parallel N and N divides the number of ranks. Every
// rank must call check_teams().
void check_teams(const Setup& s) {
  const std::string own = std::to_string(s.options.teacher_ranks), flag = "--teacher-parallel " + own + ": ";
  const int count = s.ranks->count();
  if (s.ranks->any(s.ranks->broadcast(own) != own))
    throw Error(ErrorKind::kUsage, flag + "the processes were given different numbers: give all the same");
  if (count % s.options.teacher_ranks != 0)
    throw Error(ErrorKind::kUsage, flag + std::to_string(count) + (count == 1 ? " process was" : " processes were") +
                                       " started: start " + own +
                                       " or a multiple of it, as for training on several "
                                       "GPUs");
  if (s.options.teacher_ranks > 1 && !s.target_config)
    throw Error(ErrorKind::kUsage, flag + "this run does not read the target's layers: leave it out");
}

// Returns the bytes of the target's weights that this rank has loaded.
int64_t target_bytes(const Setup& s) {
  if (!s.target) return 0;
  const model::DecoderWeights& own = s.target->weights;
  int64_t bytes = s.divided ? s.divided->share_bytes() : 0;
  if (!s.divided) {
    model::DecoderWeights weights = own;
    weights.visit(s.target->config, [&](const std::string& name, const at::Tensor& t) {
      if (name.find("layers.") != std::string::npos) bytes += static_cast<int64_t>(t.nbytes());
    });
  }
  for (const at::Tensor& t : {own.norm, own.lm_head, own.embed.is_same(own.lm_head) ? at::Tensor() : own.embed})
    if (t.defined()) bytes += static_cast<int64_t>(t.nbytes());
  return bytes;
}

void load_divided(Setup& s, at::ScalarType dtype) {
  const fs::path directory = s.options.target;
  const parallel::Ranks& team = s.ranks->team(s.options.teacher_ranks);
  s.divided = std::make_shared<DividedTarget>(
      model::load_shard_for_decoding(directory, s.device, dtype, parallel::make_shard_group(team)), team);
  model::Decoder around =
      s.head ? model::load_without_layers(directory, s.device, dtype) : model::load_head(directory, s.device, dtype);
  around.config.draft_vocab.clear();  // the teacher uses its whole vocabulary
  model::add_eos_id(around.config, s.options.tokenizer_end);
  s.target = std::make_shared<const model::Decoder>(std::move(around));
  log(LogLevel::kInfo, "--teacher-parallel " + std::to_string(team.count()) + ": " + std::to_string(team.count()) +
                           " of the " + std::to_string(s.ranks->count()) +
                           " processes hold the target together; each has " + std::to_string(target_bytes(s) >> 20) +
                           " MiB, its share and the whole head");
}

// Chooses the compute dtype (rank 0's choice, for all ranks) and the dtype in which the draft is saved.
void choose_dtype(Setup& s) {
  const bool from_target = s.target_config && (s.spec.kind == "prune" || new_head(s.spec));
  const model::DecoderConfig draft = from_target ? *s.target_config : draft_config(s);
  const bool blocks = s.target_config && s.from.kind == TeacherSpec::Kind::kTarget && s.options.teacher_ranks == 1 &&
                      runs_as_served(s.options.device.dtype, *s.target_config, s.device);
  s.compute = s.begun_dtype && s.options.device.dtype == "auto" ? ComputeDtype{*s.begun_dtype, "the run began so"}
              : blocks ? ComputeDtype{"fp32", "the target's blocks are multiplied as they are, with sums in fp32"}
                       : choose_compute_dtype(s.options.device.dtype, s.target_config ? &*s.target_config : nullptr,
                                              draft, s.device, cpu_features());
  s.options.device.dtype = s.ranks->broadcast(s.compute.flag);
  s.compute.flag = s.options.device.dtype;
  s.as_served = blocks && s.compute.flag == "fp32";  // a run that began in bf16 goes on with dequantised weights
  s.published = published_dtype(model::resolve_dtype(s.options.device.dtype, draft), draft.dtype);
  if (s.ranks->is_first())
    log(LogLevel::kInfo, "computing in " + (s.compute.flag == "auto" ? "each checkpoint's dtype" : s.compute.flag) +
                             ": " + s.compute.reason + "; the draft is written in " + model::dtype_flag(s.published));
}

}  // namespace

void load_target(Setup& s) {
  const DistillOptions& o = s.options;
  check_teams(s);
  s.device = model::resolve_device(s.ranks->device(o.device.device));
  s.ranks->use_device(s.device);
  choose_dtype(s);
  if (!s.target_config) return;
  const fs::path directory = o.target;
  const bool here = s.from.kind == TeacherSpec::Kind::kTarget;
  if (here || s.from.kind == TeacherSpec::Kind::kHidden || has_weights(directory)) {
    s.target_id = fingerprint_model(directory);
    s.inputs["target"]["id"] = s.target_id->id;
  }
  if (!here && (s.spec.kind != "prune" || !has_weights(directory))) return;
  if (o.teacher_ranks > 1) return load_divided(s, model::resolve_dtype(s.options.device.dtype, *s.target_config));
  const auto target = std::make_shared<model::Decoder>(
      load_teacher(directory, s.device, s.as_served ? "auto" : s.options.device.dtype));
  if (s.as_served && s.ranks->is_first())
    log(LogLevel::kInfo, "the target answers with its GGUF file's own blocks, as it does when it serves");
  target->config.draft_vocab.clear();  // the teacher uses its whole vocabulary
  model::add_eos_id(target->config, s.options.tokenizer_end);
  s.target = target;
}

namespace {

// Returns the target's configuration if the target has weights, else null.
const model::DecoderConfig* whole_target(const Setup& s) {
  if (s.target) return &s.target->config;
  return s.target_config && has_weights(s.options.target) ? &*s.target_config : nullptr;
}

}  // namespace

HeadKind::Plan head_plan(const Setup& s) {
  const model::DecoderConfig* target = whole_target(s);
  if (!target)
    throw Error(ErrorKind::kUsage, "--draft " + s.options.draft + ": " + name_of(s.head->kind) +
                                       " reads the target's hidden states, and " + s.options.target +
                                       " has no weights");
  if (s.spec.kind != "model") return s.head->plan_new(*target, s.options.draft_vocab);
  if (s.options.draft_vocab > 0)
    throw Error(ErrorKind::kUsage, "--draft-vocab: the ids of a head that exists are fixed, and " + s.spec.argument +
                                       " holds " + name_of(s.head->kind));
  return s.head->plan_of(s.spec.argument, *target);
}

model::DecoderConfig draft_config(const Setup& s) {
  if (s.head) return head_plan(s).layers;
  if (s.spec.kind == "prune") {
    const model::DecoderConfig* target = whole_target(s);
    if (!target)
      throw Error(ErrorKind::kUsage, "--draft " + s.options.draft + " takes layers of the target, and " +
                                         s.options.target + " has no weights");
    if (s.spec.layers < 1 || s.spec.layers > target->num_layers)
      throw Error(ErrorKind::kUsage,
                  "--draft " + s.options.draft + ": the target has " + std::to_string(target->num_layers) + " layers");
    return *target;
  }
  if (s.spec.kind == "model") return model::load_decoder_config(s.spec.argument);
  return model::parse_decoder_config(read_config_file(s.spec), s.spec.argument);
}

int64_t check_fit(const Setup& s, const model::DecoderConfig& draft, const ShardIndex& data) {
  const DistillOptions& o = s.options;
  const std::string tokenizer = s.inputs["target"]["tokenizer"];
  if (data.tokenizer_digest != tokenizer)
    throw Error(ErrorKind::kData, o.data + ": tokenised by another tokenizer (" + data.tokenizer_digest.substr(0, 12) +
                                      ") than the target's (" + tokenizer.substr(0, 12) +
                                      "): run `specdec data ingest` again with --target " + o.target);
  if (s.target_config && s.target_config->vocab_size != draft.vocab_size)
    throw Error(ErrorKind::kModel, "--draft " + o.draft + ": vocab_size " + std::to_string(draft.vocab_size) +
                                       ", the target has " + std::to_string(s.target_config->vocab_size) +
                                       ": a draft needs the target's vocabulary");
  if (o.draft_vocab > draft.vocab_size)
    throw Error(ErrorKind::kUsage, "--draft-vocab " + std::to_string(o.draft_vocab) + ": the target has " +
                                       std::to_string(draft.vocab_size) + " tokens");
  const int64_t context =
      s.target_config ? std::min(draft.max_position, s.target_config->max_position) : draft.max_position;
  if (o.sequence_length > context)
    throw Error(ErrorKind::kUsage, "--sequence-length " + std::to_string(o.sequence_length) + ": the models take " +
                                       std::to_string(context) + " tokens");
  return context;
}

void load_data(Setup& s, const model::DecoderConfig& draft, Stages& stages) {
  DistillOptions& o = s.options;
  const data::ShardReader reader(o.data);
  s.data_in_use = reader.hold();
  const int64_t context = check_fit(s, draft, reader.index());
  std::vector<TokenRow> train = reader.rows("train"), holdout = reader.rows("holdout");
  check_tokens(train, draft.vocab_size, o.data);
  check_tokens(holdout, draft.vocab_size, o.data);
  if (s.head) forget_second_tokens(train), forget_second_tokens(holdout);
  int64_t longest = 2;
  for (const TokenRow& row : train) longest = std::max(longest, static_cast<int64_t>(row.tokens.size()));
  if (o.sequence_length == 0) o.sequence_length = std::min(longest, context);
  s.inputs["data"] = {{"path", o.data}, {"digest", reader.digest()}};
  s.train = prepare_rows(std::move(train), o.sequence_length);
  PreparedRows held_out = prepare_rows(std::move(holdout), context);
  s.limits = {.longest = context, .first_learnt = s.head ? 2 : 1};
  const Json unanswered = open_teacher(s, held_out, stages);
  const Json whole = {{"rows", s.train.rows.size()}, {"tokens", s.train.tokens}};
  if (o.sample < 1) s.train = prepare_rows(sample_rows(std::move(s.train.rows), o.sample, o.device.seed), 0);
  s.answers_anew =
      s.target && s.from.kind == TeacherSpec::Kind::kTarget && o.contexts == "target" &&
      !(reader.index().written_by == "target" && s.target_id && reader.index().target_id == s.target_id->id);
  s.holdout_rows = static_cast<int64_t>(held_out.rows.size());
  s.held_out =
      split_held_out(std::move(held_out.rows),
                     o.evaluate_rows > 0 ? static_cast<size_t>(o.evaluate_rows) : kMaxSelectionRows, kMaxVerdictRows);
  s.held_out_conversations = s.held_out.verdict_conversations;
  s.data_counts = {{"train_rows", s.train.rows.size()},       {"train_tokens", s.train.tokens},
                   {"loss_tokens", s.train.loss_tokens},      {"cut_rows", s.train.cut_rows},
                   {"cut_tokens", s.train.cut_tokens},        {"empty_rows", s.train.empty_rows},
                   {"holdout_rows", s.holdout_rows},          {"sequence_length", o.sequence_length},
                   {"written_by", reader.index().written_by}, {"contexts", s.answers_anew ? "target" : "data"}};
  if (!o.rejects.empty()) {
    s.rejects = read_rejects(o.rejects, s.train.rows);
    s.data_counts["rejects"] = to_json(s.rejects);
    s.inputs["rejects"] = {{"path", o.rejects}, {"digest", digest_of(s.rejects)}};
    if (s.rejects.matched == 0)
      throw Error(ErrorKind::kData, "--rejects " + o.rejects + ": " + std::to_string(s.rejects.records) +
                                        " records, and none is of a conversation in " + o.data +
                                        ": give the rejects that were recorded with this traffic");
  }
  if (o.sample < 1) s.data_counts["sampled_from"] = whole;
  if (!unanswered.is_null()) s.data_counts["unanswered_rows"] = unanswered;
  if (s.train.cut_tokens > 0)
    log(LogLevel::kWarn, std::to_string(s.train.cut_rows) + " rows are longer than " +
                             std::to_string(o.sequence_length) + " tokens: " + std::to_string(s.train.cut_tokens) +
                             " tokens are not used");
  if (s.held_out.verdict_conversations < kMinVerdictConversations)
    log(LogLevel::kWarn, "only " +
                             std::to_string(s.held_out.verdict_conversations + s.held_out.selection_conversations) +
                             " held-out conversations: the verdict will be inconclusive (at least " +
                             std::to_string(kMinHeldOutConversations) + " are needed)");
}

namespace {

int64_t parameters_of(const Setup& s, const model::DecoderConfig& config) {
  return s.head ? head_plan(s).parameters : model::num_parameters(draft_to_train(s, config));
}

}  // namespace

// Plans the memory of training:
//   * the draft's weights in their dtype;
//   * in fp32 their gradients, Adam's two moments and, for 16-bit weights, master copies (if the ranks divide the
//     optimizer state, only this rank's share of moments and master copies);
//   * the activations of a batch;
//   * the logits of both models for a chunk of rows (head_loss.h);
//   * the cached logits of the target.
model::MemoryPlan memory_plan(const Setup& s, const model::DecoderConfig& config, bool shares_optimizer) {
  const model::DecoderConfig draft = draft_to_train(s, config);
  const at::ScalarType dtype = model::resolve_dtype(s.options.device.dtype, draft);
  const model::DecoderConfig& target = s.target ? s.target->config : draft;
  model::MemoryPlan plan = model::plan_memory({.target = target,
                                               .target_dtype = dtype,
                                               .draft = &draft,
                                               .draft_dtype = dtype,
                                               .sequences = 0,
                                               .tokens_per_sequence = 0,
                                               .device = s.device});
  const int64_t parameters = parameters_of(s, config), ranks = shares_optimizer ? s.ranks->count() : 1;
  // The target is already loaded, so its bytes are added back to the available memory.
  plan.target_bytes = target_bytes(s);
  plan.available_bytes += plan.target_bytes;
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  plan.draft_bytes = parameters * (element + 4) + (parameters + ranks - 1) / ranks * (element < 4 ? 12 : 8);
  const int64_t batch =
      s.options.batch_tokens > 0 ? s.options.batch_tokens : batch_shape(kMostStepTokens, draft.vocab_size).batch_tokens;
  const double drafted = s.options.anchors * static_cast<double>(std::max<int64_t>(0, s.options.on_policy - 1));
  plan.workspace_bytes += activation_bytes(draft, static_cast<int64_t>((1 + drafted) * static_cast<double>(batch)),
                                           element, s.options.recompute && !s.head) +
                          2 * element * std::min(batch, head_loss_rows(draft.vocab_size)) * draft.vocab_size;
  if (s.as_served && !s.head && s.options.on_policy == 0) plan.workspace_bytes += ServedTarget::kCacheBytes;
  if (s.target && !s.ce && !s.head && s.options.on_policy == 0)
    plan.target_cache_bytes = std::min(s.options.teacher_cache_mib << 20, 2 * s.train.loss_tokens * draft.vocab_size);
  return plan;
}

void plan_memory(Setup& s, const model::DecoderConfig& config) {
  s.shares_optimizer = s.ranks->any(s.options.shard_optimizer) && s.ranks->count() > 1;
  model::MemoryPlan plan = memory_plan(s, config, s.shares_optimizer);
  if (!s.shares_optimizer && s.ranks->count() > 1 && s.ranks->any(plan.total() > plan.available_bytes)) {
    s.shares_optimizer = true;
    plan = memory_plan(s, config, true);
    log(LogLevel::kInfo,
        "the optimizer's state does not fit on every rank, so each keeps a share (as with --shard-optimizer)");
  }
  log(LogLevel::kInfo, "memory: " + plan.text());
  if (s.ranks->is_first() && s.target_config && !s.head)
    model::warn_of_large_draft(draft_to_train(s, config), *s.target_config);
  model::check_memory(plan);
  s.spare_bytes = plan.available_bytes - plan.total();
  if (!s.ranks->is_first()) return;
  const uint64_t checkpoint = static_cast<uint64_t>(parameters_of(s, config)) * 12,
                 free = free_disk_bytes(s.options.out);
  if (free < 3 * checkpoint)
    throw Error(ErrorKind::kIo, s.options.out + ": " + std::to_string(free >> 20) +
                                    " MiB free, three checkpoints take " + std::to_string(3 * checkpoint >> 20) +
                                    " MiB: free some space or choose another --out");
}

}  // namespace specdec::distill
