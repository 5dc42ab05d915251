#include "distill/run/preparation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "distill/run/draft_vocab.h"
#include "distill/run/heads.h"
#include "distill/teacher/head_loss.h"
#include "distill/train/contexts.h"
#include "distill/train/timed_evaluation.h"
#include "engine/forward/device_errors.h"
#include "engine/forward/memory_plan.h"

namespace specdec::distill {

namespace {

// Tokens of each timed pass that measures the machine's speed. The first passes are small, because on a slow machine a
// large pass could take longer than the whole preparation may.
constexpr int64_t kSampleTokens[] = {64, 64, 512};
constexpr double kMostPassSeconds = 1;  // longest duration of a pass, because the clock is checked only between passes
constexpr int64_t kLeastProbedRows = 2;
// Measuring the rows that choose the checkpoint (selection half) may take at most 1 / kMostSelectionShare of the time
// for measuring the rows that judge the draft (verdict half).
constexpr double kMostSelectionShare = 3;
// The number of held-out prompts to which the target should generate an answer, even if the answers must then be short.
constexpr double kWantedRows = 1.5 * static_cast<double>(kMinVerdictConversations);

// Returns the floating-point operations of a forward pass per token. For a mixture of experts, all experts count as
// active.
double flop_per_token(const model::DecoderConfig& config) {
  const double table = config.tie_embeddings ? 0 : static_cast<double>(config.vocab_size * config.hidden_size);
  return 2 * (static_cast<double>(model::num_parameters(config)) - table);
}

double mean_tokens(const std::vector<TokenRow>& rows) {
  const double all = std::accumulate(rows.begin(), rows.end(), 0.0, [](double sum, const TokenRow& row) {
    return sum + static_cast<double>(row.tokens.size());
  });
  return rows.empty() ? 1 : std::max(1.0, all / static_cast<double>(rows.size()));
}

double mean_prompt(const std::vector<TokenRow>& rows) {
  double tokens = 1;
  for (const TokenRow& row : rows) tokens += static_cast<double>(row.prompt_tokens) / static_cast<double>(rows.size());
  return tokens;
}

// Returns rows from the middle of the training set, cut to `tokens` in total.
std::vector<TokenRow> sample_rows(const std::vector<TokenRow>& train, int64_t tokens) {
  std::vector<TokenRow> out;
  int64_t left = tokens;
  for (size_t i = train.size() / 2; i < train.size() && left > 2; ++i) {
    out.push_back(train[i]);
    TokenRow& row = out.back();
    row.tokens.resize(std::min(row.tokens.size(), static_cast<size_t>(left)));
    row.loss_mask.resize(row.tokens.size());
    // Puts the last token into the loss. If the row was cut within its prompt, it has no other token in the loss, and
    // prepare_rows() would drop it.
    row.loss_mask.back() = 1;
    left -= static_cast<int64_t>(row.tokens.size());
  }
  return prepare_rows(std::move(out), 0).rows;
}

struct Work {
  double target = 0, draft = 0;  // floating-point operations per token
  double both() const { return target + draft; }
};

Work work_of(const PreparationInput& in) {
  model::DecoderConfig draft = in.draft;
  if (in.head_parameters > 0)
    return {flop_per_token(in.target->config),
            2.0 * static_cast<double>(in.head_parameters) * static_cast<double>(in.options.ttt_steps)};
  if (in.spec.kind == "prune")
    draft.num_layers = in.spec.layers, draft.layers.resize(static_cast<size_t>(in.spec.layers));
  return {in.target ? flop_per_token(in.target->config) : 0, flop_per_token(draft)};
}

// Runs the target over the rows and computes their logits, as the teacher does in training.
void read_by_target(const PreparationInput& in, const std::vector<TokenRow>& rows, const EvaluationStep& step) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const int64_t most = head_loss_rows(in.target->config.vocab_size);
  for (const auto& group : group_rows(rows, order, kEvaluationTokens)) {
    const Batch batch = make_batch(rows, group);
    const RowLogits logits = row_logits(*in.target, batch, in.divided.get());
    for (int64_t begin = 0; begin < batch.rows.numel(); begin += most) {
      logits(begin, std::min(batch.rows.numel(), begin + most));
      step(static_cast<double>(begin) / static_cast<double>(batch.rows.numel()));
    }
  }
  model::wait_for_device(in.target->weights.norm.device());
}

// Measures the floating-point operations per second of the target's forward pass on this machine. Returns infinity
// without a time limit, target or training row.
double flop_per_second(const PreparationInput& in, const Work& work, Stages& stages, const TimePlan& time) {
  if (!time.is_limited() || !in.target || in.train.rows.empty()) return std::numeric_limits<double>::infinity();
  stages.begin("measuring this machine");
  double speed = 0;
  for (const int64_t tokens : kSampleTokens) {  // the first pass is also the warm-up
    const std::vector<TokenRow> sample = sample_rows(in.train.rows, tokens);
    const double flop = work.target * mean_tokens(sample) * static_cast<double>(sample.size());
    if (sample.empty() || (speed > 0 && flop / speed > kTuningShare * time.limit())) break;
    const double begin = time.clock().seconds();
    read_by_target(in, sample, stages.step());
    speed = std::max(speed, flop / std::max(time.clock().seconds() - begin, 1e-9));
  }
  return speed > 0 ? speed : std::numeric_limits<double>::infinity();
}

void keep_first(std::vector<TokenRow>& rows, int64_t& conversations, int64_t most, int64_t least_conversations) {
  std::set<std::string> seen;
  size_t end = 0;
  for (; end < rows.size(); ++end) {
    const bool fresh = !seen.contains(rows[end].conversation);
    if (fresh && static_cast<int64_t>(end) >= most && static_cast<int64_t>(seen.size()) >= least_conversations) break;
    seen.insert(rows[end].conversation);
  }
  rows.resize(end);
  conversations = static_cast<int64_t>(seen.size());
}

}  // namespace

void Stages::begin(const std::string& name, const std::string& detail) {
  name_ = name;
  look();
  if (progress_) progress_({name, 0, 0, "", detail});
}

EvaluationStep Stages::step() {
  return [this](double share) {
    look();
    if (progress_)
      // Reports at most 99 %; the start of the next stage shows that this stage is done.
      progress_({name_, std::min(99.0, std::round(100 * share)), 100, "%", ""});
  };
}

void Stages::look() const {
  if (stop_requested())
    throw Error(ErrorKind::kNetwork, "stopped by a signal while " + name_ + ": the same command with --resume goes on");
}

RunLimits run_limits(const DistillOptions& o, int64_t train_tokens) {
  const auto tokens = static_cast<double>(train_tokens);
  return {o.time_limit_seconds, o.max_steps > 0 ? 0 : o.epochs * tokens, o.max_steps,
          o.batch_tokens * std::max<int64_t>(1, o.accumulate), tokens};
}

void shorten(HeldOut& held_out, int64_t selection_rows, int64_t verdict_rows, bool exactly) {
  const int64_t least = exactly ? 1 : kMinVerdictConversations;
  keep_first(held_out.selection, held_out.selection_conversations, selection_rows, least);
  keep_first(held_out.verdict, held_out.verdict_conversations, verdict_rows, exactly ? 1 : 2 * least);
}

namespace {

// The work that a run can afford before its first step.
struct Budget {
  const PreparationInput& in;
  const TimePlan& time;
  Work work;
  double speed = 0;  // floating-point operations per second; infinity without a time limit
  // Floating-point operations that the run's limits in steps and epochs allow; infinity without such limits.
  double flop = 0;

  // Returns the floating-point operations that a stage may take: `share` times the operations of the whole run, but no
  // more than fit into the stage's time.
  double of_stage(double share, TimePlan::Stage stage) const {
    return std::min(share * flop, speed * time.seconds_for(stage));
  }
  // Returns how many rows can be computed with `operations`. Without a time limit, at least kFreeFlop operations may be
  // used.
  int64_t rows(double operations, double row_operations) const {
    return rows_for(operations, row_operations, 1, time.is_limited() ? 0 : kFreeFlop);
  }
  std::function<bool()> is_late_after(TimePlan::Stage stage) const {
    if (!time.is_limited()) return {};
    return [&clock = time.clock(), end = time.clock().seconds() + time.seconds_for(stage)] {
      return clock.seconds() >= end;
    };
  }
};

DraftInit make_draft(const Budget& budget, Stages& stages) {
  const PreparationInput& in = budget.in;
  const bool prunes = in.spec.kind == "prune";
  stages.begin(prunes ? "choosing layers" : "making the draft");
  LayerSearch search{.passes = INT64_MAX, .step = stages.step()};
  if (prunes) {
    const double row = mean_tokens(probe_rows(in.train.rows, in.draft.vocab_size)),
                 flop = budget.of_stage(kLayerChoiceShare, TimePlan::Stage::kLayers);
    search.is_late = budget.is_late_after(TimePlan::Stage::kLayers);
    double left = flop;
    if (budget.time.is_limited() && std::isfinite(budget.speed)) {
      // A quarter of the time is for the target's logits of the probe rows, which are computed only once.
      search.rows = std::max(kLeastProbedRows, budget.rows(flop / 4, budget.work.target * row));
      search.batch_tokens = static_cast<int64_t>(kMostPassSeconds * budget.speed / budget.work.target);
      left *= 0.75;
    }
    search.passes = budget.rows(left, budget.work.draft * row);
  }
  return init_draft({in.spec, in.options.device.dtype, in.device, in.options.device.seed, in.options.temperature,
                     search, in.options.draft_vocab, in.options.ttt_steps, in.options.ttt_decay},
                    in.target, in.train.rows);
}

// Returns the mean number of tokens per measured row. If the target generates the answers under a time limit, assumes
// answers of kLeastAnswerTokens tokens.
double measured_tokens(const Budget& budget, const std::vector<TokenRow>& rows) {
  const bool is_short = budget.in.answer && budget.time.is_limited();
  return is_short ? mean_prompt(rows) + kLeastAnswerTokens : mean_tokens(rows);
}

// Generates the target's answers to as many held-out prompts as the run can afford. If too few rows for a verdict would
// get an answer, the answers are made shorter.
void answer_within(const Budget& budget, HeldOut& held_out, Preparation& out) {
  const PreparationInput& in = budget.in;
  const double flop = budget.of_stage(kContextsShare, TimePlan::Stage::kAnswers) / in.options.sample;
  AnswerLimits limits{.is_late = budget.is_late_after(TimePlan::Stage::kAnswers)};
  const double prompt = budget.time.is_limited() ? mean_prompt(held_out.verdict) : 0;  // tokens to prefill
  if (budget.time.is_limited()) {
    const double tokens = (flop / kWantedRows / budget.work.target - prompt) / kDecodeOverPrefill;
    limits.tokens = static_cast<int64_t>(
        std::clamp(tokens, static_cast<double>(kLeastAnswerTokens), static_cast<double>(kAnswerTokens)));
  }
  const double tokens = prompt + kDecodeOverPrefill * static_cast<double>(limits.tokens);
  int64_t affordable = budget.rows(flop, tokens * budget.work.target);
  // If there is time to prefill kWantedRows prompts, at least that many rows are begun, since limits.is_late ends all
  // answers in time.
  if (budget.time.is_limited() && flop >= kWantedRows * (prompt + kLeastAnswerTokens) * budget.work.target)
    affordable = std::max(affordable, static_cast<int64_t>(kWantedRows));
  if (in.options.evaluate_rows == 0)
    out.selection_rows = std::min(out.selection_rows, std::max<int64_t>(1, affordable / 4));
  out.verdict_rows = std::min(out.verdict_rows, std::max<int64_t>(1, affordable - affordable / 4));
  shorten(held_out, out.selection_rows, out.verdict_rows, out.exactly);
  const HeldOutAnswers answers = in.answer(held_out, limits);
  put_answers(answers, in.limits, "the target's answers", held_out);
  out.answers = to_json(answers);
}

// Makes the initial draft and decides how much the run can afford to measure.
Preparation make_start(const PreparationInput& in, HeldOut& held_out, Stages& stages, const TimePlan& time) {
  Budget budget{in, time, work_of(in)};
  if (in.divided) in.divided->take_time_of_all(true);
  budget.speed = flop_per_second(in, budget.work, stages, time);
  if (in.divided) in.divided->take_time_of_all(false);
  RunLimits limits = run_limits(in.options, in.train.tokens);
  const double of_limit = flop_of_run(limits, budget.speed, budget.work.target, budget.work.draft);
  limits.seconds = 0;
  budget.flop = flop_of_run(limits, budget.speed, budget.work.target, budget.work.draft);
  Preparation out;
  out.init = make_draft(budget, stages);
  out.exactly = time.is_limited();
  const double both = budget.work.both();
  out.verdict_rows = budget.rows(budget.of_stage(kFirstEvaluationShare, TimePlan::Stage::kStart) / in.options.sample,
                                 both * measured_tokens(budget, held_out.verdict));
  // Limits the number of held-out rows that choose the checkpoint (selection half), because they are measured at least
  // twice.
  const double selection = std::min(kSelectionShare * budget.flop,
                                    budget.speed * time.seconds_for(TimePlan::Stage::kStart) / kMostSelectionShare);
  out.selection_rows = in.options.evaluate_rows > 0
                           ? in.options.evaluate_rows
                           : budget.rows(selection, both * measured_tokens(budget, held_out.selection));
  if (in.answer)
    answer_within(budget, held_out, out);
  else
    shorten(held_out, out.selection_rows, out.verdict_rows, out.exactly);
  const double measured = static_cast<double>(held_out.selection.size()) * mean_tokens(held_out.selection) * both;
  out.evaluations = evaluations_for(of_limit, measured);
  return out;
}

// Broadcasts rank 0's preparation to every other rank.
void share_start(const PreparationInput& in, Preparation& start) {
  const Json own = {{"search", start.init.search},        {"selection_rows", start.selection_rows},
                    {"verdict_rows", start.verdict_rows}, {"exactly", start.exactly},
                    {"evaluations", start.evaluations},   {"answers", start.answers}};
  const Json first = Json::parse(in.ranks->broadcast(own.dump()));
  start.init.search = first.at("search");
  start.selection_rows = first.at("selection_rows").get<int64_t>();
  start.verdict_rows = first.at("verdict_rows").get<int64_t>();
  start.exactly = first.at("exactly").get<bool>();
  start.evaluations = first.at("evaluations").get<int64_t>();
  start.answers = first.at("answers");
  share_draft(start.init, in.target, *in.ranks, in.device);
}

}  // namespace

Preparation prepare(const PreparationInput& in, HeldOut& held_out, Stages& stages, const TimePlan& time) {
  Preparation out;
  if (in.ranks->is_first()) out = make_start(in, held_out, stages, time);
  if (in.divided) in.divided->finish();
  share_start(in, out);
  if (out.init.head) out.init.head->divide(in.divided);
  if (!in.ranks->is_first()) {
    shorten(held_out, out.selection_rows, out.verdict_rows, out.exactly);
    if (!out.answers.is_null())
      put_answers(answers_from_json(out.answers, in.draft.vocab_size, "rank 0's answers"), in.limits,
                  "rank 0's answers", held_out);
  }
  stages.begin("measuring the start");
  const EvaluationOptions options{
      .temperature = in.options.temperature, .step = stages.step(), .ranks = in.ranks, .divided = in.divided.get()};
  const TrainedDraft draft = out.init.draft();
  const double begin = time.clock().seconds();
  const std::unique_ptr<Teacher> teacher = in.teacher ? in.teacher->teach(held_out.verdict, 0) : nullptr;
  out.before = evaluate_within(time.seconds_for(TimePlan::Stage::kStart) / in.options.sample, time.clock(), draft,
                               teacher.get(), held_out.verdict, options);
  out.start_seconds = time.clock().seconds() - begin;
  held_out.verdict_conversations = count_conversations(held_out.verdict);
  // The vocabulary is reduced after the draft was measured with its full vocabulary. So the verdict includes the
  // acceptance that the reduction costs. A head has its reduced vocabulary from the start.
  if (in.options.draft_vocab > 0 && !out.init.head) {
    model::Decoder& draft = out.init.decoder;
    draft.config.draft_vocab = choose_draft_vocab(in.train.rows, in.options.draft_vocab, draft.config);
  }
  return out;
}

double seconds_for_steps(double step_seconds, int64_t steps) {
  return usual_duration(static_cast<double>(steps) * step_seconds / kUsualTrainingShare);
}

namespace {

void warn_of_few_steps(const Json& chosen) {
  const double steps = chosen.at("expected_steps"), step_seconds = chosen.at("step_seconds");
  if (steps >= static_cast<double>(kTeachingSteps)) return;
  const std::string limit = duration_text(seconds_for_steps(step_seconds, kWantedSteps));
  log(LogLevel::kWarn, format("%.0f steps teach little: %lld steps need about %s here: --time-limit %s", steps,
                              static_cast<long long>(kWantedSteps), limit.c_str(), limit.c_str()));
}

}  // namespace

Json choose_settings(DistillOptions& o, const RunLimits& limits, const StepInput& input, Stages& stages,
                     const Clock& clock) {
  const GradientSource& source = input.source;
  const model::DecoderConfig& config = source.config();
  StepCost cost;
  const bool measures = limits.seconds > 0 && o.batch_tokens == 0;
  if (measures) {
    stages.begin("measuring a step");
    const double seconds = limits.tuning_seconds > 0 ? limits.tuning_seconds : kTuningShare * limits.seconds;
    cost = measure_step(input, seconds, clock, [&] { stages.step()(0); });
    if (const model::Decoder* target = source.teacher ? source.teacher->first_answers() : nullptr)
      cost.first_answer = cost.per_token * flop_per_token(target->config) / (3 * flop_per_token(config));
  }
  if (o.batch_tokens == 0) {
    const int64_t wanted = default_step_tokens(limits, cost);
    const BatchShape shape =
        batch_shape(o.accumulate > 0 ? std::max<int64_t>(2, wanted / o.accumulate) : wanted, config.vocab_size);
    o.batch_tokens = shape.batch_tokens;
    if (o.accumulate == 0) o.accumulate = shape.accumulate;
  }
  if (o.accumulate == 0) o.accumulate = 1;
  if (o.learning_rate == 0) o.learning_rate = default_learning_rate(config.hidden_size, o.draft.starts_with("model:"));
  const int64_t step = o.batch_tokens * o.accumulate;
  Json chosen = {{"batch_tokens", o.batch_tokens}, {"accumulate", o.accumulate}, {"learning_rate", o.learning_rate}};
  std::string line = std::to_string(step) + " tokens a step" +
                     (o.accumulate > 1 ? " in " + std::to_string(o.accumulate) + " batches" : "") +
                     format(", peak learning rate %.2g", o.learning_rate);
  if (measures) {
    const double seconds = cost.fixed + cost.per_token * static_cast<double>(step),
                 steps = tokens_in_run(limits, cost, step) / static_cast<double>(step);
    chosen["step_seconds"] = seconds;
    chosen["expected_steps"] = std::round(steps);
    line += format("; a step takes about %.2g s, so the time limit is worth about %.0f steps", seconds, steps);
  }
  log(LogLevel::kInfo, line);
  if (measures) warn_of_few_steps(chosen);
  return chosen;
}

void apply_settings(const Json& chosen, DistillOptions& o) {
  o.batch_tokens = chosen.at("batch_tokens").get<int64_t>();
  o.accumulate = chosen.at("accumulate").get<int64_t>();
  o.learning_rate = chosen.at("learning_rate").get<double>();
}

namespace {

Json describe_draft(DraftInit& init) {
  if (init.head) return init.head->shape();
  const model::DecoderConfig& config = init.decoder.config;
  return {{"config", to_json(config)},
          {"dtype", model::dtype_flag(init.decoder.weights.embed.scalar_type())},
          {"draft_vocab", config.draft_vocab}};
}

// Makes a draft with uninitialised weights, with the shapes that rank 0 described in `first`.
DraftInit draft_like(const Json& first, const std::shared_ptr<const model::Decoder>& target, at::Device device) {
  constexpr const char* kWhere = "the draft of rank 0";
  DraftInit out;
  if (first.contains("head")) {
    out.head = head_kind(parse_draft_spec(first.at("head").get<std::string>()))->like(first, target, kWhere);
  } else {
    model::DecoderConfig config = model::parse_decoder_config(first.at("config"), kWhere);
    config.draft_vocab = first.at("draft_vocab").get<std::vector<int32_t>>();
    out.decoder =
        model::random_decoder(config, 0, device, model::resolve_dtype(first.at("dtype").get<std::string>(), config));
  }
  return out;
}

}  // namespace

void share_draft(DraftInit& init, const std::shared_ptr<const model::Decoder>& target, const parallel::Ranks& ranks,
                 at::Device device) {
  if (ranks.count() == 1) return;
  const Json first = Json::parse(ranks.broadcast(ranks.is_first() ? describe_draft(init).dump() : ""));
  if (!ranks.is_first()) {
    Json search = std::move(init.search);
    init = draft_like(first, target, device);
    init.search = std::move(search);
  }
  share_weights(init.draft(), ranks);
  if (!init.head) return;
  if (const std::vector<at::Tensor> frozen = init.head->frozen_weights(); !frozen.empty()) ranks.broadcast(frozen);
}

void share_weights(const TrainedDraft& draft, const parallel::Ranks& ranks) {
  std::vector<at::Tensor> weights;
  draft.visit([&](const std::string&, at::Tensor& t) { weights.push_back(t); });
  ranks.broadcast(weights);
}

}  // namespace specdec::distill
