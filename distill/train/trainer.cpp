#include "distill/train/trainer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"

namespace specdec::distill {

namespace {

constexpr int kFaultsInARow = 3, kMaxRollbacks = 3;

struct GivenUp {};

// Updates running means: mean += 0.1 · (figure − mean), or mean = figure the first time. NaN figures are skipped.
void follow(const std::vector<double>& figures, std::vector<double>& means) {
  if (means.empty()) means.assign(figures.size(), 0);
  for (size_t j = 0; j < figures.size(); ++j)
    if (std::isfinite(figures[j])) means[j] += (means[j] == 0 ? 1 : 0.1) * (figures[j] - means[j]);
}

}  // namespace

FaultPolicy::Action FaultPolicy::observe(bool finite) {
  if (finite) {
    in_a_row_ = 0;
    return Action::kStep;
  }
  if (++in_a_row_ < kFaultsInARow) return Action::kSkip;
  in_a_row_ = 0;
  return ++rollbacks_ > kMaxRollbacks ? Action::kStop : Action::kRollBack;
}

Trainer::Trainer(const TrainerOptions& options, const TrainerData& data, const TrainedDraft& draft, const Clock& clock,
                 ProgressFn progress)
    : options_(options),
      data_(data),
      draft_(draft),
      clock_(clock),
      progress_(std::move(progress)),
      ranks_(*data.ranks),
      parameters_(draft.trainable()),
      optimizer_(parameters_, options.adamw, *data.ranks, options.shares_optimizer),
      sums_(parameters_),
      batcher_(*data.train, options.batch_tokens, options.seed) {
  if (ranks_.is_first()) store_.emplace(options.run_directory / "checkpoints");
  if (options_.schedule.total_steps <= 0 && options_.schedule.time_limit_seconds <= 0)
    throw Error(ErrorKind::kInternal, "trainer: neither a number of steps nor a time limit");
}

double Trainer::elapsed() const { return elapsed_before_ + clock_.seconds() - started_; }

double Trainer::fraction() const {
  double out = 0;
  if (options_.schedule.total_steps > 0)
    out = static_cast<double>(step_) / static_cast<double>(options_.schedule.total_steps);
  if (options_.schedule.time_limit_seconds > 0) out = std::max(out, elapsed() / options_.schedule.time_limit_seconds);
  return out;
}

double Trainer::evaluations_due() const {
  return std::min(1.0, fraction()) * static_cast<double>(options_.evaluations);
}

bool Trainer::finished() const { return fraction() >= 1; }

Trainer::Decision Trainer::decide() const {
  const bool due =
      options_.evaluate_every > 0 ? step_ % options_.evaluate_every == 0 : evaluations_due() >= evaluations_;
  const double first = ranks_.is_first();
  double told[] = {finished() ? first : 0, due ? first : 0, stop_requested() ? 1.0 : 0.0};
  ranks_.sum(told);
  if (told[2] > 0) request_stop();
  return {told[0] > 0, told[1] > 0, told[2] > 0};
}

Json Trainer::state() const {
  Json measured = Json::array();
  for (const Measured& m : measured_) {
    measured.push_back({{"step", m.step}, {"score", m.score}, {"loss", m.loss}});
    if (m.ci) measured.back()["ci"] = {m.ci->low, m.ci->high};
  }
  return {{"step", step_},
          {"tokens", tokens_},
          {"elapsed_seconds", elapsed()},
          {"cursor", {{"epoch", batcher_.cursor().epoch}, {"batch", batcher_.cursor().batch}}},
          {"seed", options_.seed},
          {"rate_scale", rate_scale_},
          {"rollbacks", faults_.rollbacks()},
          {"skipped_steps", skipped_},
          {"evaluations", evaluations_},
          {"last_loss", last_loss_},
          {"acceptance", acceptance_},
          {"deeper_acceptance", deeper_},
          {"measured", measured},
          {"extra", options_.extra}};
}

// Only rank 0 reads the checkpoint; the other ranks receive its content by broadcast.
void Trainer::restore(const Checkpoint& checkpoint) {
  const Json s = Json::parse(ranks_.broadcast(checkpoint.state.dump()));
  try {
    step_ = s.at("step").get<int64_t>();
    tokens_ = s.at("tokens").get<int64_t>();
    batcher_.seek({s.at("cursor").at("epoch").get<int64_t>(), s.at("cursor").at("batch").get<int64_t>()});
    evaluations_ = s.at("evaluations").get<int>();
    last_loss_ = s.at("last_loss").get<double>();
    acceptance_ = s.value("acceptance", 0.0);
    deeper_ = s.value("deeper_acceptance", std::vector<double>());
    measured_.clear();
    for (const Json& m : s.at("measured")) {
      measured_.push_back({m.at("step").get<int64_t>(), m.at("score").get<double>(), m.at("loss").get<double>(), {}});
      if (m.contains("ci"))  // checkpoints of earlier versions have no interval
        measured_.back().ci = {m.at("ci").at(0).get<double>(), m.at("ci").at(1).get<double>()};
    }
  } catch (const Json::exception& e) {
    throw Error(ErrorKind::kData, checkpoint.directory.string() + ": state.json: " + e.what());
  }
  saved_step_ = step_;  // set first: if a rank now fails, the half-restored state is not saved
  if (ranks_.is_first()) CheckpointStore::restore(checkpoint, draft_);
  std::vector<at::Tensor> weights;
  for (const NamedTensor& p : parameters_) weights.push_back(p.tensor);
  ranks_.broadcast(weights);
  CheckpointStore::restore(checkpoint, optimizer_);
  measured_step_ = !measured_.empty() && measured_.back().step == step_ ? step_ : -1;
}

void Trainer::resume(const Checkpoint& checkpoint) {
  restore(checkpoint);
  const Json& s = checkpoint.state;
  const std::string where = (checkpoint.directory / "state.json").string();
  elapsed_before_ = json_double(s, "elapsed_seconds", {0, 1e12}, where, ErrorKind::kData);
  rate_scale_ = json_double(s, "rate_scale", {0, 1}, where, ErrorKind::kData);
  skipped_ = json_int(s, "skipped_steps", {0, INT64_MAX}, where, ErrorKind::kData);
  faults_ = FaultPolicy(static_cast<int>(json_int(s, "rollbacks", {0, kMaxRollbacks}, where, ErrorKind::kData)));
}

// Computes the gradients of a step over all ranks. Sets `given_up` if any rank was asked to stop during the step.
Trainer::StepFigures Trainer::step_gradients(const StepShare& share) {
  StepFigures out;
  // When a stop is requested, the step is abandoned without an update, because a step of a large model may take too
  // long.
  const auto stopped = [&] {
    if (stop_requested()) throw GivenUp{};
  };
  LossOptions loss = options_.loss;
  loss.acceptance = acceptance_;
  GradientSource source = draft_.source(data_.teacher, loss);
  source.learnt = share.learnt;
  source.on_policy = options_.on_policy;
  source.terms = options_.terms;
  source.recompute = options_.recompute;
  source.rows = data_.train;
  source.step = step_;
  source.deeper = deeper_;
  if (options_.on_policy.applies())
    for (const size_t row : share.rows)
      source.anchors += anchor_count((*data_.train)[row], options_.on_policy, draft_.config().max_position);
  if (source.head) source.head_rows = source.head->count_rows(share.batches, ranks_);
  GradientFigures f;
  try {
    f = compute_gradients(source, share.batches, sums_, stopped);
  } catch (const GivenUp&) {
    out.given_up = true;
  }
  if (data_.divided) data_.divided->finish();
  if (!out.given_up) out.rate = rate_scale_ * learning_rate(options_.schedule, step_, elapsed());
  std::vector<double> sums = {f.loss,
                              f.acceptance,
                              static_cast<double>(f.tokens),
                              f.finite ? 0.0 : 1.0,
                              out.given_up ? 1.0 : 0.0,
                              ranks_.is_first() ? out.rate : 0};
  const auto deeper = static_cast<size_t>(std::max<int64_t>(1, options_.on_policy.length)) - 1;
  f.deeper.resize(deeper);
  for (const DepthFigures& depth : f.deeper) sums.insert(sums.end(), {depth.acceptance, depth.rows});
  ranks_.sum(sums);
  out.loss = sums[0], out.acceptance = sums[1], out.tokens = static_cast<int64_t>(sums[2]);
  out.finite = sums[3] == 0, out.given_up = sums[4] > 0, out.rate = sums[5];
  for (size_t j = 0; j < deeper; ++j) out.deeper.push_back(sums[6 + 2 * j] / sums[7 + 2 * j]);
  if (out.given_up || !out.finite) return out;
  std::vector<at::Tensor> gradients, shapes;
  for (const NamedTensor& p : parameters_) {
    gradients.push_back(p.tensor.grad());
    shapes.push_back(
        at::zeros({1}, p.tensor.options().dtype(at::kFloat).requires_grad(false)).expand(p.tensor.sizes()));
  }
  ranks_.sum(gradients, shapes);
  for (size_t i = 0; i < gradients.size(); ++i) parameters_[i].tensor.mutable_grad() = gradients[i];
  out.norm = optimizer_.grad_norm();
  out.finite = std::isfinite(out.norm);
  return out;
}

Trainer::StepFigures Trainer::train_step() {
  const BatchCursor before = batcher_.cursor();
  const StepShare share = batcher_.next_step(options_.accumulate, ranks_.rank(), ranks_.count());
  StepFigures out;
  try {
    out = step_gradients(share);
  } catch (const parallel::RankError&) {
    batcher_.seek(before);
    throw;
  }
  if (out.given_up) {
    sums_.clear();
    batcher_.seek(before);
    return out;
  }
  switch (faults_.observe(out.finite)) {
    case FaultPolicy::Action::kStep:
      optimizer_.step(out.rate, out.norm);
      break;
    case FaultPolicy::Action::kSkip:
      ++skipped_;
      log(LogLevel::kWarn,
          "step " + std::to_string(step_) + ": the loss or its gradient is not finite: update skipped");
      break;
    case FaultPolicy::Action::kRollBack:
      roll_back();
      return out;
    case FaultPolicy::Action::kStop:
      throw Error(ErrorKind::kInternal, "training diverged: the loss stayed non-finite through " +
                                            std::to_string(kMaxRollbacks) +
                                            " roll-backs, each with half the learning rate; try a smaller --lr");
  }
  ++step_;
  tokens_ += out.tokens;
  if (out.finite) last_loss_ = out.loss;
  if (out.finite && data_.teacher) {
    acceptance_ = out.acceptance;
    follow(out.deeper, deeper_);
  }
  return out;
}

void Trainer::roll_back() {
  rate_scale_ /= 2;
  if (!ranks_.is_first()) return restore({});
  const auto checkpoint = store_->newest_good();
  if (!checkpoint) throw Error(ErrorKind::kInternal, "training diverged and there is no checkpoint to go back to");
  log(LogLevel::kWarn, "step " + std::to_string(step_) +
                           ": the loss is not finite three times in a row: back to step " +
                           std::to_string(checkpoint->step) + " with half the learning rate");
  metrics_->write("roll_back", step_,
                  {{"to_step", static_cast<double>(checkpoint->step)}, {"rate_scale", rate_scale_}});
  restore(*checkpoint);
}

bool Trainer::measure() {
  // Without held-out rows the score is the step number, so that the latest checkpoint ranks highest.
  Measured m{step_, static_cast<double>(step_), last_loss_, {}};
  if (!data_.selection->empty()) {
    const std::vector<TokenRow>& rows = *data_.selection;
    const auto stopped = [](double) {
      if (stop_requested()) throw GivenUp{};
    };
    const EvaluationOptions options{
        .temperature = options_.loss.temperature, .step = stopped, .ranks = data_.ranks, .divided = data_.divided};
    const Evaluation e =
        data_.judge ? evaluate(draft_, *data_.judge, rows, options) : evaluate(draft_, nullptr, rows, options);
    m.score = data_.judge ? e.acceptance : -e.cross_entropy;
    std::vector<std::pair<std::string, double>> values = {{"cross_entropy", e.cross_entropy}};
    if (data_.judge) {
      m.ci = acceptance_estimate(rows, e).ci;
      values.insert(values.end(), {{"acceptance", e.acceptance},
                                   {"acceptance_low", m.ci->low},
                                   {"acceptance_high", m.ci->high},
                                   {"greedy_agreement", e.greedy_agreement}});
    }
    if (metrics_) metrics_->write("held_out", step_, values);
  }
  measured_step_ = step_;
  if (!std::isfinite(m.score)) return false;
  measured_.push_back(m);
  return true;
}

void Trainer::save() {
  // Non-finite weights are not saved. With such weights the next loss is not finite either, and FaultPolicy then rolls
  // back to the last checkpoint.
  bool finite = true;
  for (const NamedTensor& p : parameters_) finite = finite && at::isfinite(p.tensor.detach()).all().item<bool>();
  if (optimizer_.is_shared()) finite = !ranks_.any(!finite);
  if (!finite) {
    log(LogLevel::kWarn, "step " + std::to_string(step_) + ": weights are not finite: no checkpoint");
    return;
  }
  const std::vector<int64_t> best = rank_checkpoints(measured_);
  if (store_)
    store_->save(step_, best.empty() ? step_ : best.front(), draft_, optimizer_, state());
  else if (optimizer_.is_shared())
    optimizer_.visit_state({});
  saved_step_ = step_;
}

void Trainer::report(const StepFigures& f, double step_seconds) {
  session_tokens_ += f.tokens;
  session_step_seconds_ += step_seconds;
  const double speed = step_seconds > 0 ? static_cast<double>(f.tokens) / step_seconds : 0;
  std::vector<std::pair<std::string, double>> values = {{"loss", f.loss}};
  if (data_.teacher) values.emplace_back("acceptance", f.acceptance);
  for (size_t j = 0; j < f.deeper.size(); ++j)
    if (std::isfinite(f.deeper[j])) values.emplace_back("acceptance_" + std::to_string(j + 2), f.deeper[j]);
  values.insert(values.end(), {{"learning_rate", f.rate},
                               {"gradient_norm", f.norm},
                               {"tokens", static_cast<double>(tokens_)},
                               {"tokens_per_second", speed},
                               {"elapsed_seconds", elapsed()}});
  if (metrics_) metrics_->write("train", step_, values);
  if (!progress_) return;
  const std::string detail = format("loss %.4f", f.loss) +
                             (data_.teacher ? format(" · acceptance %.4f", f.acceptance) : "") +
                             format(" · %.0f tokens/s", speed);
  // Progress is reported as a fraction of the steps or of the time limit, whichever will be reached first.
  const double limit = options_.schedule.time_limit_seconds, steps = static_cast<double>(options_.schedule.total_steps);
  if (steps > 0 && (limit <= 0 || static_cast<double>(step_) / steps >= elapsed() / limit))
    progress_({"distill", static_cast<double>(step_), steps, "steps", detail});
  else
    progress_({"distill", std::min(elapsed(), limit), limit, "s", detail});
}

void Trainer::train() {
  while (true) {
    const Decision now = decide();
    bool stop = now.stop;
    if (now.last && measured_step_ != step_ && progress_) progress_({"measuring and saving the end", 0, 0, "", ""});
    if ((now.last || now.due) && measured_step_ != step_) {
      try {
        const bool sound = measure();
        evaluations_ = static_cast<int>(evaluations_due()) + 1;
        if (sound) save();
      } catch (const GivenUp&) {  // the evaluation was interrupted; the resumed run repeats it
        stop = true;
      }
    }
    if (now.last && measured_step_ == step_) return;
    if (options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0 && saved_step_ != step_) save();
    if (stop) {
      if (saved_step_ != step_) save();
      ranks_.any(false);  // waits for rank 0 to save: the launcher may kill all ranks once one exits
      throw Error(ErrorKind::kNetwork,
                  "stopped by a signal at step " + std::to_string(step_) +
                      " with a checkpoint saved: the same command with --resume goes on from there");
    }
    const double begin = clock_.seconds();
    const StepFigures figures = train_step();
    if (!figures.given_up) report(figures, clock_.seconds() - begin);
  }
}

TrainingSummary Trainer::run() {
  started_ = clock_.seconds();
  if (ranks_.is_first()) metrics_ = std::make_unique<Metrics>(options_.run_directory, clock_, step_);
  try {
    train();
  } catch (const parallel::RankError&) {
    // If the optimizer state is divided, a failed rank's share of it is lost. Then nothing is saved, and the run must
    // be resumed from the previous checkpoint.
    if (saved_step_ != step_ && !optimizer_.is_shared()) save();
    throw;
  }
  TrainingSummary out{step_, tokens_, elapsed(), last_loss_, skipped_, faults_.rollbacks(), 0, measured_, deeper_};
  if (session_step_seconds_ > 0) out.tokens_per_second = static_cast<double>(session_tokens_) / session_step_seconds_;
  return out;
}

}  // namespace specdec::distill
