#include "deploy/serve/engine/draft_swap.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/device_lost.h"
#include "base/log.h"
#include "base/statistics.h"
#include "deploy/serve/queue/step_runner.h"
#include "engine/decode/step.h"

namespace specdec::deploy {

namespace {

Json estimate_json(const Estimate& e, double scale = 1, double shift = 0) {
  return {{"value", scale * e.value + shift}, {"ci", {scale * e.ci.low + shift, scale * e.ci.high + shift}}};
}

Json draft_json(const NamedDraft& draft) { return {{"name", draft.name}, {"id", draft.id}}; }

}  // namespace

void TimedModel::extend(std::span<const decode::Extension> extensions, decode::LogitRows& out) {
  struct Pass {
    const PassTimer& timer;
    double started = timer.clock.seconds();
    ~Pass() { timer.seconds += timer.clock.seconds() - started; }
  } pass{timer_};
  ForwardingModel::extend(extensions, out);
}

DraftSwap::Held::Held(NamedDraft d, double prior, const decode::CostModel& target, const PassTimer& timer)
    : draft(std::move(d)),
      model(*draft.model, timer),
      costs(target.another_draft()),
      overlap(prior),
      coupled_overlap(prior / (2 - prior)) {}  // lower bound of the coupled rule's overlap

DraftSwap::DraftSwap(const decode::CausalModel& target, NamedDraft serving, double prior_overlap,
                     const decode::CostModel& costs, const PassTimer& timer)
    : target_(target), prior_(prior_overlap), costs_(costs), timer_(timer) {
  if (!serving.model) return;
  decode::check_vocabulary(target, *serving.model);
  serving_ = std::make_shared<Held>(std::move(serving), prior_, costs_, timer_);
  serving_->on_trial = false;
}

DraftSwap::~DraftSwap() {
  if (loader_.joinable()) loader_.join();
}

void DraftSwap::set_loader(std::function<NamedDraft(const std::string&)> load) { load_ = std::move(load); }

void DraftSwap::share_among_tenants(size_t of_one_tenant) {
  const std::lock_guard lock(mutex_);
  scored_of_one_tenant_ = of_one_tenant;
}

DraftSwap::Pick DraftSwap::pick(const std::string& conversation, uint64_t tenant) {
  const std::lock_guard lock(mutex_);
  if (!candidate_) return {serving_, nullptr};
  const double at = share_place(conversation);
  if (at < serve_) {
    ++served_;
    return {candidate_, nullptr};
  }
  const bool room =
      scores_.contains(conversation) || (scores_.size() < kScored && scored_by_tenant_[tenant] < scored_of_one_tenant_);
  const bool scores = serving_ && at >= 1 - score_ && room;
  return {serving_, scores ? candidate_ : nullptr};
}

void DraftSwap::scored(const std::string& conversation, uint64_t tenant, const Pick& pick,
                       std::span<const double> serving, std::span<const double> shadow) {
  pick.shadow->overlap.add(shadow);
  const std::lock_guard lock(mutex_);
  if (pick.shadow != candidate_) return;
  const auto [at, is_new] = scores_.try_emplace(conversation, Scores{.place = scores_.size()});
  scored_by_tenant_[tenant] += is_new;
  Scores& sums = at->second;
  for (const double x : serving) sums.serving += std::clamp(x, 0.0, 1.0);
  for (const double x : shadow) sums.candidate += std::clamp(x, 0.0, 1.0);
  sums.positions += static_cast<int64_t>(shadow.size());
}

std::vector<std::shared_ptr<const DraftSwap::Held>> DraftSwap::in_use() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const Held>> out;
  for (const auto& held : {serving_, candidate_})
    if (held) out.push_back(held);
  return out;
}

std::string DraftSwap::serving() const {
  const std::lock_guard lock(mutex_);
  return serving_ ? serving_->draft.id : "";
}

Json DraftSwap::status() const {
  Json out = {{"schema", "specdec.draft/1"}};
  std::vector<double> serving, candidate, difference;
  int64_t positions = 0;
  {
    const std::lock_guard lock(mutex_);
    out["state"] = state_;
    out["serving"] = serving_ ? draft_json(serving_->draft) : Json();
    out["candidate"] = candidate_ ? draft_json(candidate_->draft) : Json();
    out["last"] = state_ == "none" ? Json() : Json({{"name", name_}, {"reason", reason_}});
    out["former"] = std::count_if(former_.begin(), former_.end(), [](const auto& held) { return !held.expired(); });
    if (!candidate_) return out;
    out["candidate"].update({{"score", score_}, {"serve", serve_}, {"answers", served_}});
    // The conversations' values are in order of arrival: a confidence sequence that is read repeatedly is valid only if
    // earlier values keep their positions.
    for (auto* values : {&serving, &candidate, &difference}) values->resize(scores_.size());
    for (const auto& [conversation, sums] : scores_) {
      const auto n = static_cast<double>(sums.positions);
      serving[sums.place] = sums.serving / n;
      candidate[sums.place] = sums.candidate / n;
      difference[sums.place] = (1 + candidate[sums.place] - serving[sums.place]) / 2;
      positions += sums.positions;
    }
  }
  out["paired"] = {{"conversations", serving.size()}, {"positions", positions}};
  if (serving.empty()) return out;
  out["paired"].update({{"serving", estimate_json(bounded_mean(serving))},
                        {"candidate", estimate_json(bounded_mean(candidate))},
                        {"difference", estimate_json(bounded_mean(difference), 2, -1)}});
  return out;
}

// Ends the trial and returns the candidate, so that the caller can free its model after releasing the lock.
std::shared_ptr<DraftSwap::Held> DraftSwap::end_trial(const char* outcome, const std::string& reason) {
  state_ = outcome;
  reason_ = reason;
  scores_.clear();
  scored_by_tenant_.clear();
  if (candidate_) candidate_->on_trial = false;
  return std::exchange(candidate_, nullptr);
}

void DraftSwap::order(const DraftOrder& order, std::function<void(const std::optional<Error>&)> done) {
  if (order.action == DraftOrder::Action::kLoad) return load(order, std::move(done));
  std::shared_ptr<Held> released;
  std::optional<Error> error;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(former_, [](const auto& held) { return held.expired(); });
    if (!candidate_) {
      error.emplace(ErrorKind::kUsage, "no draft is on trial (state: " + state_ + "): load one first");
    } else if (order.action == DraftOrder::Action::kShare) {
      score_ = order.score.value_or(score_);
      serve_ = order.serve.value_or(serve_);
    } else if (order.action == DraftOrder::Action::kPromote) {
      released = std::exchange(serving_, end_trial("promoted", ""));
    } else {
      released = end_trial("dropped", "");
    }
    if (released) former_.push_back(released);
  }
  released.reset();
  done(error);
}

void DraftSwap::load(const DraftOrder& order, std::function<void(const std::optional<Error>&)> done) {
  std::optional<Error> error;
  {
    const std::lock_guard lock(mutex_);
    if (!load_)
      error.emplace(ErrorKind::kUsage, "this server never uses a draft model (--k 0): restart it without --k 0");
    else if (state_ == "loading")
      error.emplace(ErrorKind::kUsage, name_ + " is being loaded: wait for it");
    else if (candidate_)
      error.emplace(ErrorKind::kUsage, candidate_->draft.name + " is on trial: promote or drop it first");
    if (!error) {
      state_ = "loading";
      name_ = order.draft;
      reason_.clear();
    }
  }
  if (error) return done(error);
  if (loader_.joinable()) loader_.join();  // joins the thread of the previous load, which has nothing left to do
  loader_ = std::thread([this, order, done = std::move(done)] {
    std::optional<Error> failed;
    try {
      NamedDraft draft = load_(order.draft);
      decode::check_vocabulary(target_, *draft.model);
      auto held = std::make_shared<Held>(std::move(draft), prior_, costs_, timer_);
      const std::lock_guard lock(mutex_);
      candidate_ = std::move(held);
      state_ = "canary";
      score_ = order.score.value_or(kScore);
      serve_ = order.serve.value_or(0);
      served_ = 0;
    } catch (const Error& e) {
      failed = e;
    } catch (const DeviceLost& lost) {  // the engine's next pass will fail in the same way and end the server
      failed.emplace(ErrorKind::kDevice, lost.what());
    } catch (const std::exception& e) {
      failed.emplace(ErrorKind::kInternal, e.what());
    }
    if (failed) {
      log(LogLevel::kWarn, "the draft was not loaded: " + std::string(failed->what()));
      const std::lock_guard lock(mutex_);
      end_trial("refused", failed->what());
    }
    done(failed);
  });
}

}  // namespace specdec::deploy
