#include "deploy/serve/schedule/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

namespace specdec::deploy {

namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

Family<Counter>& counters(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
Counter& counter(prometheus::Registry& registry, const char* name, const char* help) {
  return counters(registry, name, help).Add({});
}
Gauge& gauge(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}
Histogram& histogram(prometheus::Registry& registry, const char* name, const char* help,
                     const std::vector<double>& bounds) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, bounds);
}

const std::vector<double> kTokenBounds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5};
const std::vector<double> kLatencyBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                            2.5,   5,    10,    30,   60,  120,  300, 600};

constexpr char kTenant[] = "tenant";  // removed by merge_tenants() before export

// Merges the series of a family to one series per domain: the counts of `tenant`, or without `tenant` the sums over all
// tenants.
void merge_tenants(prometheus::MetricFamily& family, const std::optional<std::string>& tenant) {
  std::map<std::string, double> by_domain;
  for (const prometheus::ClientMetric& metric : family.metric) {
    std::string domain, whose;
    for (const auto& label : metric.label) (label.name == kTenant ? whose : domain) = label.value;
    if (!tenant || whose == *tenant) by_domain[domain] += metric.counter.value;
  }
  family.metric.clear();
  for (const auto& [domain, value] : by_domain) {
    prometheus::ClientMetric metric;
    metric.label.push_back({"domain", domain});
    metric.counter.value = value;
    family.metric.push_back(std::move(metric));
  }
}

// Raises a counter to `total`, a sum since the start. A Prometheus counter may only grow.
void raise(Counter& counter, double total) { counter.Increment(std::max(0.0, total - counter.Value())); }

}  // namespace

struct Metrics::Series {
  // Series that are numbered by draft position or K. Each series is created when it is first used, so unused numbers
  // have no series.
  template <class Series, size_t kEnd>
  class Numbered {
   public:
    Numbered(Family<Series>& family, const char* label) : family_(family), label_(label) {}
    Series& at(size_t i) {
      i = std::min(i, kEnd - 1);
      if (!at_[i]) at_[i] = &family_.Add({{label_, std::to_string(i)}});
      return *at_[i];
    }

   private:
    Family<Series>& family_;
    const char* label_;
    Series* at_[kEnd] = {};
  };
  struct PositionCounters : Numbered<Counter, Metrics::kPositions> {
    PositionCounters(prometheus::Registry& registry, const char* name, const char* help)
        : Numbered(counters(registry, name, help), "position") {}
  };
  using KCounters = Numbered<Counter, Metrics::kPositions + 1>;

  prometheus::Registry registry;
  Counter& drafts =
      counter(registry, "specdec:spec_decode_num_drafts_total", "Verification steps with at least one drafted token.");
  Family<Counter>& plain_steps = counters(registry, "specdec:spec_decode_num_plain_steps_total",
                                          "Steps of a sequence in which the draft model drafted no token, by reason.");
  Counter* plain_by_reason[decode::kPlainReasons] = {};
  KCounters steps_at{
      counters(registry, "specdec:spec_decode_num_steps_total", "Steps of a sequence, by the K chosen for it."), "k"};
  Counter& early_stops =
      counter(registry, "specdec:spec_decode_num_early_stops_total",
              "Steps of a sequence that drafted fewer than K tokens because the draft was not confident.");
  Counter& probes = counter(registry, "specdec:spec_decode_num_probes_total",
                            "Steps of a sequence that drafted only to measure whether drafting pays again.");
  Counter& round_steps = counter(registry, "specdec:spec_decode_num_round_steps_total",
                                 "Steps of a sequence that a GPU ran without asking the host in between.");
  Counter& draft_tokens = counter(registry, "specdec:spec_decode_num_draft_tokens_total", "Drafted tokens.");
  Counter& accepted_tokens = counter(registry, "specdec:spec_decode_num_accepted_tokens_total",
                                     "Accepted draft tokens, before the cut by EOS, stop or max_tokens.");
  PositionCounters drafted_at{registry, "specdec:spec_decode_num_draft_tokens_per_pos_total",
                              "Steps that drafted this position (from 0)."};
  PositionCounters reached_at{registry, "specdec:spec_decode_num_reached_tokens_per_pos_total",
                              "Steps that drafted this position and accepted all positions before it."};
  PositionCounters accepted_at{registry, "specdec:spec_decode_num_accepted_tokens_per_pos_total",
                               "Steps that accepted this position, before the cut by EOS, stop or max_tokens."};
  PositionCounters overlap_at{registry, "specdec:spec_decode_overlap_sum_per_pos_total",
                              "Sum of sum_x min(p, q) over the steps that reached this position."};
  Gauge& k =
      gauge(registry, "specdec:spec_decode_k", "Drafted tokens per sequence in the last step, mean over the batch.");
  Numbered<Gauge, Metrics::kPositions + 1> verify_pass{
      prometheus::BuildGauge()
          .Name("specdec:verify_pass_seconds")
          .Help("Measured time of a target pass that verifies K tokens, at the last batch size.")
          .Register(registry),
      "k"};
  Counter& suffix_draft_tokens = counter(registry, "specdec:suffix_draft_tokens_total",
                                         "Tokens drafted from the text itself, without the draft model.");
  Counter& suffix_accepted_tokens =
      counter(registry, "specdec:suffix_accepted_tokens_total",
              "Accepted tokens that were drafted from the text itself, before the cut by EOS, stop or max_tokens.");
  Counter& draft_failures =
      counter(registry, "specdec:draft_failures_total", "Sequences that continued without the draft after it failed.");

  Family<Counter>& stage = counters(registry, "specdec:stage_seconds_total", "Seconds of the engine thread, by stage.");
  Counter& prompt_seconds = stage.Add({{"stage", "prompt"}});
  Counter& draft_seconds = stage.Add({{"stage", "draft"}});
  Counter& verify_seconds = stage.Add({{"stage", "verify"}});
  Counter& sample_seconds = stage.Add({{"stage", "sample"}});

  Counter& steps = counter(registry, "specdec:steps_total", "Steps of the engine, each of a whole batch.");
  Histogram& batch = histogram(registry, "specdec:batch_size", "Sequences per step.", {1, 2, 4, 8, 16, 32, 64, 128});
  Gauge& running = gauge(registry, "specdec:num_requests_running", "Sequences being generated.");
  Gauge& waiting = gauge(registry, "specdec:num_requests_waiting", "Requests in the queue.");
  Gauge& connections = gauge(registry, "specdec:connections", "Open client connections.");
  Counter& prompt_tokens = counter(registry, "specdec:prompt_tokens_total", "Prompt tokens processed.");
  Gauge& cache_usage =
      gauge(registry, "specdec:kv_cache_usage_perc", "Share of the target's KV cache that sequences hold; 1 is full.");
  Counter& prefix_queries =
      counter(registry, "specdec:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.");
  Counter& prefix_hits = counter(registry, "specdec:prefix_cache_hits_total",
                                 "Prompt tokens found in the prefix cache, which are not prefilled again.");
  Counter& preemptions = counter(registry, "specdec:num_preemptions_total",
                                 "Preemptions: sequences that lost their KV cache because it was full.");
  Counter& resumed_tokens =
      counter(registry, "specdec:resumed_tokens_total", "Tokens of preempted sequences that were prefilled again.");
  Counter& generation_tokens = counter(registry, "specdec:generation_tokens_total",
                                       "Tokens of answers, up to their end by EOS, stop or max_tokens.");
  Histogram& first_token = histogram(registry, "specdec:time_to_first_token_seconds",
                                     "Time from queueing an answer to its first token.", kLatencyBounds);
  Histogram& between_tokens =
      histogram(registry, "specdec:inter_token_seconds",
                "Time per token: the time between two steps of an answer, divided by the tokens of the later step.",
                kTokenBounds);
  Histogram& duration =
      histogram(registry, "specdec:request_seconds", "Time from queueing an answer to its last token.", kLatencyBounds);
  Family<Counter>& finished =
      counters(registry, "specdec:answers_finished_total", "Answers, by the reason why they ended.");
  Family<Counter>& replies = counters(registry, "specdec:requests_total", "HTTP replies, by route and status.");
  Family<Gauge>& info = prometheus::BuildGauge()
                            .Name("specdec:info")
                            .Help("Always 1; the labels are the fingerprints of target and draft, and the package.")
                            .Register(registry);
  std::mutex mutex;        // guards the two members below
  Gauge* named = nullptr;  // the only series of `info`
  prometheus::Labels named_labels;

  // Families that have one series per draft.
  Family<Gauge>& gauges(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  }
  enum Role { kServe, kPaired, kShadow };
  Family<Counter>& draft_reached =
      counters(registry, "specdec:draft_reached_tokens_total",
               "Draft positions reached, by draft and role. serve: by the draft that drafted; "
               "shadow: scored by a draft on trial; paired: the same positions, by the draft that "
               "drafted.");
  Family<Counter>& draft_overlap = counters(registry, "specdec:draft_overlap_sum_total",
                                            "Sum of sum_x min(p, q) over the reached positions, by draft and role.");
  Family<Gauge>& draft_pass =
      gauges("specdec:draft_pass_seconds", "Measured time of a draft pass, at the last batch size.");
  Family<Gauge>& prevailing_k = gauges("specdec:spec_decode_prevailing_k", "The K that most sequences chose recently.");
  Family<Gauge>& expected_rate =
      gauges("specdec:expected_tokens_per_second",
             "Expected tokens per second of the last batch, at the prevailing K or with plain decoding.");
  struct OfDraft {
    std::string name;
    Counter *reached[3], *overlap[3];  // indexed by Role; null until first used
    Gauge *pass, *k, *expected, *plain;
  };
  std::vector<std::unique_ptr<OfDraft>> drafts_known;  // in order of last use, the latest at the end
  OfDraft& of_draft(const std::string& name) {
    const auto at =
        std::find_if(drafts_known.begin(), drafts_known.end(), [&](const auto& d) { return d->name == name; });
    if (at != drafts_known.end()) {
      std::rotate(at, at + 1, drafts_known.end());
      return *drafts_known.back();
    }
    if (drafts_known.size() == Metrics::kDrafts) forget(*drafts_known.front());
    auto d = std::make_unique<OfDraft>(OfDraft{name,
                                               {},
                                               {},
                                               &draft_pass.Add({{"draft", name}}),
                                               &prevailing_k.Add({{"draft", name}}),
                                               &expected_rate.Add({{"draft", name}, {"k", "prevailing"}}),
                                               &expected_rate.Add({{"draft", name}, {"k", "plain"}})});
    return *drafts_known.emplace_back(std::move(d));
  }
  void forget(const OfDraft& d) {
    for (const Role role : {kServe, kPaired, kShadow}) {
      if (!d.reached[role]) continue;
      draft_reached.Remove(d.reached[role]);
      draft_overlap.Remove(d.overlap[role]);
    }
    draft_pass.Remove(d.pass);
    prevailing_k.Remove(d.k);
    expected_rate.Remove(d.expected);
    expected_rate.Remove(d.plain);
    std::erase_if(drafts_known, [&d](const auto& known) { return known.get() == &d; });
  }
  void score(const std::string& draft, Role role, const std::vector<double>& overlaps) {
    if (draft.empty() || overlaps.empty()) return;
    OfDraft& d = of_draft(draft);
    if (!d.reached[role]) {
      const prometheus::Labels labels = {{"draft", draft},
                                         {"role", role == kServe    ? "serve"
                                                  : role == kPaired ? "paired"
                                                                    : "shadow"}};
      d.reached[role] = &draft_reached.Add(labels);
      d.overlap[role] = &draft_overlap.Add(labels);
    }
    d.reached[role]->Increment(static_cast<double>(overlaps.size()));
    for (const double x : overlaps) d.overlap[role]->Increment(std::max(0.0, x));
  }

  Family<Counter>& domain_reached = counters(registry, "specdec:domain_reached_tokens_total",
                                             "Draft positions reached in answers that ended, by domain.");
  Family<Counter>& domain_overlap =
      counters(registry, "specdec:domain_overlap_sum_total",
               "Sum of sum_x min(p, q) over the positions reached in answers that ended, by domain.");
  Counter& records_lost =
      counter(registry, "specdec:records_lost_total", "Traffic or acceptance records that could not be written.");
};

Metrics::Metrics() : series_(std::make_unique<Series>()) {
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled, FinishReason::kFailed,
        FinishReason::kDrained, FinishReason::kNoTokenLeft, FinishReason::kMasksSpent})
    series_->finished.Add({{"reason", to_string(reason)}});
  for (int i = 0; i < decode::kPlainReasons; ++i)
    series_->plain_by_reason[i] =
        &series_->plain_steps.Add({{"reason", decode::to_string(static_cast<decode::PlainReason>(i))}});
}

Metrics::~Metrics() = default;

void Metrics::set_info(const ModelCard& card) {
  Series& s = *series_;
  const prometheus::Labels labels = {{"draft", card.draft}, {"target", card.target}, {"package", card.package}};
  const std::lock_guard lock(s.mutex);
  if (s.named && s.named_labels == labels) return;
  if (s.named) s.info.Remove(s.named);
  s.named = &s.info.Add(labels);
  s.named->Set(1);
  s.named_labels = labels;
}

void Metrics::step(const StepResult& result) {
  Series& s = *series_;
  const auto drafted = static_cast<size_t>(result.drafted), accepted = static_cast<size_t>(result.accepted);
  s.steps_at.at(static_cast<size_t>(result.decision.k)).Increment();
  s.early_stops.Increment(result.decision.stopped_early);
  s.probes.Increment(result.decision.probe);
  s.round_steps.Increment(result.in_round);
  s.suffix_draft_tokens.Increment(result.suffix_drafted);
  s.suffix_accepted_tokens.Increment(result.suffix_accepted);
  if (drafted == 0) {
    s.plain_by_reason[static_cast<int>(result.decision.plain)]->Increment();
    return;
  }
  s.score(result.draft, Series::kServe, result.overlaps);
  s.score(result.shadow, Series::kShadow, result.shadow_overlaps);
  if (!result.shadow_overlaps.empty()) s.score(result.draft, Series::kPaired, result.overlaps);
  s.drafts.Increment();
  s.draft_tokens.Increment(result.drafted);
  s.accepted_tokens.Increment(result.accepted);
  for (size_t i = 0; i < drafted; ++i) {
    s.drafted_at.at(i).Increment(1);
    if (i <= accepted) s.reached_at.at(i).Increment(1);
    if (i <= accepted && i < result.overlaps.size()) s.overlap_at.at(i).Increment(std::max(0.0, result.overlaps[i]));
    s.accepted_at.at(i).Increment(i < accepted ? 1 : 0);
  }
}

void Metrics::generated(int64_t tokens) { series_->generation_tokens.Increment(static_cast<double>(tokens)); }

void Metrics::batch(size_t sequences, double mean_k, const StageSeconds& total,
                    const std::vector<DepthEvidence>& bases) {
  Series& s = *series_;
  s.steps.Increment();
  s.batch.Observe(static_cast<double>(sequences));
  s.k.Set(mean_k);
  raise(s.prompt_seconds, total.prompt);
  raise(s.draft_seconds, total.draft);
  raise(s.verify_seconds, total.verify);
  raise(s.sample_seconds, total.sample);
  raise(s.draft_failures, static_cast<double>(total.draft_failures));
  for (const DepthEvidence& basis : bases) {
    const Series::OfDraft& d = s.of_draft(basis.draft);
    d.pass->Set(basis.draft_seconds);
    d.k->Set(basis.k);
    d.expected->Set(basis.tokens_per_second(basis.k));
    d.plain->Set(basis.tokens_per_second(0));
    for (size_t k = 0; k < basis.verify_seconds.size(); ++k) s.verify_pass.at(k).Set(basis.verify_seconds[k]);
  }
}

void Metrics::caches(const CacheUse& use) {
  Series& s = *series_;
  s.cache_usage.Set(use.held);
  raise(s.prefix_queries, static_cast<double>(use.asked_tokens));
  raise(s.prefix_hits, static_cast<double>(use.found_tokens));
}

void Metrics::started(int64_t prompt_tokens) { series_->prompt_tokens.Increment(static_cast<double>(prompt_tokens)); }

void Metrics::preempted() { series_->preemptions.Increment(); }

void Metrics::resumed(int64_t tokens) { series_->resumed_tokens.Increment(static_cast<double>(tokens)); }

void Metrics::first_token(double seconds) { series_->first_token.Observe(seconds); }

void Metrics::tokens(size_t count, double seconds) {
  for (size_t i = 0; i < count; ++i) series_->between_tokens.Observe(seconds / static_cast<double>(count));
}

void Metrics::finished(const ChoiceResult& result, const Whose& whose, double seconds) {
  Series& s = *series_;
  s.finished.Add({{"reason", to_string(result.reason)}}).Increment();
  s.duration.Observe(seconds);
  const AcceptanceCounts& counts = result.counts;
  if (counts.steps == 0) return;
  const prometheus::Labels labels = {{"domain", whose.domain}, {kTenant, whose.tenant}};
  s.domain_reached.Add(labels).Increment(static_cast<double>(counts.reached()));
  s.domain_overlap.Add(labels).Increment(std::max(0.0, counts.overlap_sum()));
}

void Metrics::replied(const std::string& route, int status) {
  series_->replies.Add({{"route", route}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::record_lost() { series_->records_lost.Increment(); }

std::string Metrics::text(size_t waiting, size_t running, size_t connections,
                          const std::optional<std::string>& tenant) const {
  series_->waiting.Set(static_cast<double>(waiting));
  series_->running.Set(static_cast<double>(running));
  series_->connections.Set(static_cast<double>(connections));
  std::vector<prometheus::MetricFamily> families = series_->registry.Collect();
  for (prometheus::MetricFamily& family : families)
    if (family.name.starts_with("specdec:domain_")) merge_tenants(family, tenant);
  std::erase_if(families, [](const auto& family) { return family.metric.empty(); });
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace specdec::deploy
