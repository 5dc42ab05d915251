#include "deploy/serve/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
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
Counter& counter(prometheus::Registry& registry, const char* name, const char* help) { return counters(registry, name, help).Add({}); }
Gauge& gauge(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}
Histogram& histogram(prometheus::Registry& registry, const char* name, const char* help, const std::vector<double>& bounds) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, bounds);
}

const std::vector<double> kLatencyBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};

// Counters only grow: each is moved up to the runner's running total.
void raise(Counter& counter, double total) { counter.Increment(std::max(0.0, total - counter.Value())); }

}  // namespace

struct Metrics::Series {
  // One counter a position, made when it is first needed, so that an unused position has no series.
  class PositionCounters {
   public:
    PositionCounters(prometheus::Registry& registry, const char* name, const char* help) : family_(counters(registry, name, help)) {}
    void add(size_t position, double value) {
      position = std::min(position, Metrics::kPositions - 1);
      if (!at_[position]) at_[position] = &family_.Add({{"position", std::to_string(position)}});
      at_[position]->Increment(value);
    }

   private:
    Family<Counter>& family_;
    Counter* at_[Metrics::kPositions] = {};
  };

  prometheus::Registry registry;
  Counter& drafts = counter(registry, "specdec:spec_decode_num_drafts_total", "Verification steps with at least one drafted token.");
  Counter& plain_steps = counter(registry, "specdec:spec_decode_num_plain_steps_total", "Steps without a token of the draft model: K = 0, or drafted from the text.");
  Counter& draft_tokens = counter(registry, "specdec:spec_decode_num_draft_tokens_total", "Drafted tokens.");
  Counter& accepted_tokens =
      counter(registry, "specdec:spec_decode_num_accepted_tokens_total", "Accepted draft tokens, before the cut by EOS, stop or max_tokens.");
  PositionCounters drafted_at{registry, "specdec:spec_decode_num_draft_tokens_per_pos_total", "Steps that drafted this position (from 0)."};
  PositionCounters reached_at{registry, "specdec:spec_decode_num_reached_tokens_per_pos_total",
                              "Steps that drafted this position and accepted all before it."};
  PositionCounters accepted_at{registry, "specdec:spec_decode_num_accepted_tokens_per_pos_total", "Steps that accepted this position."};
  PositionCounters overlap_at{registry, "specdec:spec_decode_overlap_sum_per_pos_total",
                              "Sum over the steps that reached this position of sum_x min(p, q)."};
  Gauge& k = gauge(registry, "specdec:spec_decode_k", "Drafted tokens a sequence in the last step, mean over the batch.");
  Histogram& k_tokens = histogram(registry, "specdec:spec_decode_k_tokens", "Drafted tokens of a step, a sequence.", {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32});
  Counter& suffix_draft_tokens = counter(registry, "specdec:suffix_draft_tokens_total", "Tokens drafted from the text itself, without the draft model.");
  Counter& suffix_accepted_tokens = counter(registry, "specdec:suffix_accepted_tokens_total", "Of these the accepted ones.");
  Counter& draft_failures = counter(registry, "specdec:draft_failures_total", "Sequences that went on without the draft after it failed.");

  Family<Counter>& stage = counters(registry, "specdec:stage_seconds_total", "Seconds of the engine thread by stage.");
  Counter& prompt_seconds = stage.Add({{"stage", "prompt"}});
  Counter& draft_seconds = stage.Add({{"stage", "draft"}});
  Counter& verify_seconds = stage.Add({{"stage", "verify"}});
  Counter& sample_seconds = stage.Add({{"stage", "sample"}});

  Counter& steps = counter(registry, "specdec:steps_total", "Steps of the engine, whole batches.");
  Histogram& batch = histogram(registry, "specdec:batch_size", "Sequences in a step.", {1, 2, 4, 8, 16, 32, 64, 128});
  Gauge& running = gauge(registry, "specdec:num_requests_running", "Sequences being generated.");
  Gauge& waiting = gauge(registry, "specdec:num_requests_waiting", "Requests in the queue.");
  Gauge& connections = gauge(registry, "specdec:connections", "Open client connections.");
  Counter& prompt_tokens = counter(registry, "specdec:prompt_tokens_total", "Prompt tokens processed.");
  Gauge& cache_usage = gauge(registry, "specdec:kv_cache_usage_perc", "Part of the target's caches that sequences hold; 1 = full.");
  Counter& prefix_queries = counter(registry, "specdec:prefix_cache_queries_total", "Prompt tokens looked for among those read before.");
  Counter& prefix_hits = counter(registry, "specdec:prefix_cache_hits_total", "Of these the ones that need not be read again.");
  Counter& preemptions = counter(registry, "specdec:num_preemptions_total", "Sequences that gave their caches up to others.");
  Counter& resumed_tokens = counter(registry, "specdec:resumed_tokens_total", "Tokens of preempted sequences that were read again.");
  Counter& generation_tokens = counter(registry, "specdec:generation_tokens_total", "Tokens emitted by the engine.");
  Histogram& first_token = histogram(registry, "specdec:time_to_first_token_seconds", "From queued to the first token.", kLatencyBounds);
  Histogram& duration = histogram(registry, "specdec:request_seconds", "From queued to the last token, an answer.", kLatencyBounds);
  Family<Counter>& finished = counters(registry, "specdec:answers_finished_total", "Answers by the reason they ended.");
  Family<Counter>& replies = counters(registry, "specdec:requests_total", "HTTP replies by route and status.");
  Family<Gauge>& info = prometheus::BuildGauge().Name("specdec:info").Help("What is served: fingerprints and package.").Register(registry);
  std::mutex mutex;                 // of the two below
  Gauge* named = nullptr;           // the one series of info
  prometheus::Labels named_labels;
  Family<Counter>& draft_reached = counters(registry, "specdec:draft_reached_tokens_total", "Positions reached, by draft; role shadow: scored by a draft on trial.");
  Family<Counter>& draft_overlap = counters(registry, "specdec:draft_overlap_sum_total", "Sum over these positions of sum_x min(p, q), by draft and role.");
  void score(const std::string& draft, const char* role, const std::vector<double>& overlaps) {
    if (draft.empty() || overlaps.empty()) return;
    const prometheus::Labels labels = {{"draft", draft}, {"role", role}};
    draft_reached.Add(labels).Increment(static_cast<double>(overlaps.size()));
    double sum = 0;
    for (const double x : overlaps) sum += std::max(0.0, x);
    draft_overlap.Add(labels).Increment(sum);
  }
  Counter& records_lost = counter(registry, "specdec:records_lost_total", "Traffic or acceptance records that could not be written.");
};

Metrics::Metrics() : series_(std::make_unique<Series>()) {
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled, FinishReason::kFailed, FinishReason::kDrained,
        FinishReason::kNoTokenLeft})
    series_->finished.Add({{"reason", to_string(reason)}});
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
  s.generation_tokens.Increment(static_cast<double>(result.emitted.size()));
  s.k_tokens.Observe(result.drafted);
  s.suffix_draft_tokens.Increment(result.suffix_drafted);
  s.suffix_accepted_tokens.Increment(result.suffix_accepted);
  if (drafted == 0) {
    s.plain_steps.Increment();
    return;
  }
  s.score(result.draft, "serve", result.overlaps);
  s.score(result.shadow, "shadow", result.shadow_overlaps);
  s.drafts.Increment();
  s.draft_tokens.Increment(result.drafted);
  s.accepted_tokens.Increment(result.accepted);
  for (size_t i = 0; i < drafted; ++i) {
    s.drafted_at.add(i, 1);
    if (i <= accepted) s.reached_at.add(i, 1);
    if (i <= accepted && i < result.overlaps.size()) s.overlap_at.add(i, std::max(0.0, result.overlaps[i]));
    s.accepted_at.add(i, i < accepted ? 1 : 0);
  }
}

void Metrics::batch(size_t sequences, double mean_k, const StageSeconds& total) {
  Series& s = *series_;
  s.steps.Increment();
  s.batch.Observe(static_cast<double>(sequences));
  s.k.Set(mean_k);
  raise(s.prompt_seconds, total.prompt);
  raise(s.draft_seconds, total.draft);
  raise(s.verify_seconds, total.verify);
  raise(s.sample_seconds, total.sample);
  raise(s.draft_failures, static_cast<double>(total.draft_failures));
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

void Metrics::finished(const ChoiceResult& result, double seconds) {
  series_->finished.Add({{"reason", to_string(result.reason)}}).Increment();
  series_->duration.Observe(seconds);
}

void Metrics::replied(const std::string& route, int status) {
  series_->replies.Add({{"route", route}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::record_lost() { series_->records_lost.Increment(); }

std::string Metrics::text(size_t waiting, size_t running, size_t connections) const {
  series_->waiting.Set(static_cast<double>(waiting));
  series_->running.Set(static_cast<double>(running));
  series_->connections.Set(static_cast<double>(connections));
  return prometheus::TextSerializer().Serialize(series_->registry.Collect());
}

}  // namespace specdec::deploy
