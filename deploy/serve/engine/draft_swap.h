// The draft that serves and, while one is on trial, the one beside it: who gets which, and what the trial shows.
//   load → loading → canary → promoted | dropped
// A sequence keeps its draft to its end; a model is freed when the last that holds it lets go. On trial a draft scores,
// at the positions that the serving draft reached, the same text: p is known there and the text depends on no draft, so
// the two are paired.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "deploy/serve/draft_control.h"
#include "deploy/serve/engine/k_log.h"
#include "engine/decode/causal_model.h"
#include "engine/decode/controller.h"

namespace specdec::deploy {

// Adds up the time of a model's passes.
class TimedModel final : public decode::ForwardingModel {
 public:
  TimedModel(decode::CausalModel& model, const Clock& clock, double& seconds)
      : ForwardingModel(model), clock_(clock), seconds_(seconds) {}
  void extend(std::span<const decode::Extension> extensions, decode::LogitRows& out) override;

 private:
  const Clock& clock_;
  double& seconds_;
};

struct NamedDraft {
  std::string name, id;                        // as the operator called it; fingerprint
  std::shared_ptr<decode::CausalModel> model;  // null: none
};

class DraftSwap final : public DraftControl {
 public:
  // conversations of a trial that are scored: more would not narrow the interval much
  static constexpr size_t kScored = 10000;
  static constexpr double kScore = 0.1;

  // A draft in use. Alive as long as a sequence holds it.
  struct Held {
    Held(NamedDraft d, double prior, const decode::CostModel& target, const Clock& clock, double& seconds);
    const NamedDraft draft;
    TimedModel model;
    decode::CostModel costs;  // engine thread: its own passes; those of the target are everyone's
    int plain_owed = -1;      // engine thread: before its next probe, while K is 0 (ControllerOptions)
    KLog k_log;               // engine thread, this one and the next
    KBasis k_basis;           // of its last step
    decode::OverlapMean overlap,
        coupled_overlap;  // engine thread: of what controllers observe, of seeded requests apart
    std::atomic<bool> on_trial{true};
  };
  struct Pick {
    std::shared_ptr<Held> draft, shadow;  // null: none
  };

  // `costs`: whose target's passes every draft shares; `seconds`: of all drafts' passes; both the engine thread's.
  // `serving.model` may be null.
  DraftSwap(const decode::CausalModel& target, NamedDraft serving, double prior_overlap, const decode::CostModel& costs,
            const Clock& clock, double& seconds);
  ~DraftSwap() override;  // waits for a load that is under way

  // Reads a draft, on a thread of its own. Throws Error; until it is set every load is refused.
  void set_loader(std::function<NamedDraft(const std::string& name)> load);

  // Of the conversations that are scored at most so many are one tenant's.
  void share_among_tenants(size_t of_one_tenant = kScored / 2);

  // Engine thread. All of a conversation fall the same way for as long as the shares stay.
  Pick pick(const std::string& conversation, uint64_t tenant = 0);
  // A step whose overlaps both drafts have, position by position.
  void scored(const std::string& conversation, uint64_t tenant, const Pick& pick, std::span<const double> serving,
              std::span<const double> shadow);

  std::vector<std::shared_ptr<const Held>> in_use() const;  // serving, on trial

  std::string serving() const override;
  Json status() const override;
  void order(const DraftOrder& order, std::function<void(const std::optional<Error>&)> done) override;

 private:
  struct Scores {
    double serving = 0, candidate = 0;
    int64_t positions = 0;
    size_t place = 0;  // in order of arrival
  };
  void load(const DraftOrder& order, std::function<void(const std::optional<Error>&)> done);
  std::shared_ptr<Held> end_trial(const char* outcome, const std::string& reason);  // under the lock

  const decode::CausalModel& target_;
  const double prior_;
  const decode::CostModel& costs_;
  const Clock& clock_;
  double& seconds_;
  std::function<NamedDraft(const std::string&)> load_;
  mutable std::mutex mutex_;  // of all below
  std::shared_ptr<Held> serving_, candidate_;
  std::vector<std::weak_ptr<Held>> former_;
  std::string state_ = "none", name_, reason_;  // of the last load
  double score_ = kScore, serve_ = 0;
  int64_t served_ = 0;                           // answers that the candidate drafted for
  std::map<std::string, Scores> scores_;         // by conversation
  std::map<uint64_t, size_t> scored_by_tenant_;  // conversations of these
  size_t scored_of_one_tenant_ = kScored;
  std::thread loader_;
};

}  // namespace specdec::deploy
