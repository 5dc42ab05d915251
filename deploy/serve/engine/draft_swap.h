// Manages the serving draft and, during a trial, a candidate that may replace it. Decides which conversations each
// draft gets, and measures the trial. The states of a trial are
//   loading → canary → promoted | dropped, or loading → refused.
// A sequence keeps its draft to its end. A model is freed when the last sequence that uses it ends. To compare the
// drafts, the candidate (as "shadow") also scores sequences of the serving draft, at the positions that the serving
// draft reached. The target's distribution is known there, and the text does not depend on the candidate, so the
// overlaps of both drafts can be compared in pairs.
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
#include "deploy/serve/engine/k_log.h"
#include "deploy/serve/schedule/draft_control.h"
#include "engine/decode/control/controller.h"
#include "engine/decode/runners/causal_model.h"

namespace specdec::deploy {

// Adds the durations of model passes to `seconds`, measured with `clock`.
struct PassTimer {
  const Clock& clock;
  double& seconds;
};

// Forwards all calls and adds the duration of each pass to the timer.
class TimedModel final : public decode::ForwardingModel {
 public:
  TimedModel(decode::CausalModel& model, const PassTimer& timer) : ForwardingModel(model), timer_(timer) {}
  void extend(std::span<const decode::Extension> extensions, decode::LogitRows& out) override;

 private:
  const PassTimer timer_;
};

struct NamedDraft {
  std::string name, id;                        // name: as the operator wrote it; id: fingerprint
  std::shared_ptr<decode::CausalModel> model;  // null: no draft
};

class DraftSwap final : public DraftControl {
 public:
  // A trial scores at most this many conversations; more would hardly narrow the interval.
  static constexpr size_t kScored = 10000;
  static constexpr double kScore = 0.1;

  // A draft that serves, is on trial, or is still used by a sequence.
  struct Held {
    Held(NamedDraft d, double prior, const decode::CostModel& target, const PassTimer& timer);
    const NamedDraft draft;
    TimedModel model;
    decode::CostModel costs;  // engine thread only: costs of this draft; the target's costs are shared by all drafts
    int plain_owed = -1;      // engine thread only: plain steps until drafting is tried again (ControllerOptions)
    KLog k_log;               // engine thread only, like depth_evidence
    DepthEvidence depth_evidence;  // figures of the draft's latest step
    // Engine thread only: mean overlaps that controllers observed. Seeded requests under the coupled rule have their
    // own mean.
    decode::OverlapMean overlap, coupled_overlap;
    std::atomic<bool> on_trial{true};
  };
  struct Pick {
    std::shared_ptr<Held> draft, shadow;  // shadow: only scores the text; null: none
  };

  // `costs` are the measured costs of the target, which all drafts share. `timer` sums the durations of the passes of
  // all drafts. Only the engine thread uses `costs` and `timer`. `serving.model` may be null.
  DraftSwap(const decode::CausalModel& target, NamedDraft serving, double prior_overlap, const decode::CostModel& costs,
            const PassTimer& timer);
  ~DraftSwap() override;  // waits for a running load

  // `load` loads a draft; it is called on a thread of its own and throws Error on failure. Until it is set, every load
  // is refused.
  void set_loader(std::function<NamedDraft(const std::string& name)> load);

  // Limits the number of scored conversations that come from one tenant.
  void share_among_tenants(size_t of_one_tenant);

  // Engine thread only. Chooses the drafts of a new sequence. All sequences of a conversation get the same drafts as
  // long as the fractions of conversations that the trial scores and serves do not change.
  Pick pick(const std::string& conversation, uint64_t tenant = 0);
  // Records the overlaps of the serving draft and of the shadow at each position of a step that both scored.
  void scored(const std::string& conversation, uint64_t tenant, const Pick& pick, std::span<const double> serving,
              std::span<const double> shadow);

  std::vector<std::shared_ptr<const Held>> in_use() const;  // the serving draft, then the draft on trial

  std::string serving() const override;
  Json status() const override;
  void set_several_tenants(bool several) override { share_among_tenants(several ? kScored / 2 : kScored); }
  void order(const DraftOrder& order, std::function<void(const std::optional<Error>&)> done) override;

 private:
  struct Scores {
    double serving = 0, candidate = 0;
    int64_t positions = 0;
    size_t place = 0;  // position of the conversation in order of arrival
  };
  void load(const DraftOrder& order, std::function<void(const std::optional<Error>&)> done);
  std::shared_ptr<Held> end_trial(const char* outcome, const std::string& reason);  // the caller holds the lock

  const decode::CausalModel& target_;
  const double prior_;
  const decode::CostModel& costs_;
  const PassTimer timer_;
  std::function<NamedDraft(const std::string&)> load_;
  mutable std::mutex mutex_;  // guards all members below
  std::shared_ptr<Held> serving_, candidate_;
  std::vector<std::weak_ptr<Held>> former_;
  std::string state_ = "none", name_, reason_;  // state, name and reason of the latest load
  double score_ = kScore, serve_ = 0;
  int64_t served_ = 0;                           // answers drafted by the candidate
  std::map<std::string, Scores> scores_;         // conversation → scores
  std::map<uint64_t, size_t> scored_by_tenant_;  // scored conversations of each tenant
  size_t scored_of_one_tenant_ = kScored;
  std::thread loader_;
};

}  // namespace specdec::deploy
