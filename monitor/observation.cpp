#include "monitor/observation.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>

#include "base/file.h"
#include "monitor/read/series.h"
#include "monitor/statistics/counter_chart.h"

namespace specdec::monitor {

namespace {

constexpr const char* kEvidenceAge = "evidence_age";  // key of the EvidenceAge in the state file
// A counter chart judges the counts of one check together, as one bucket. Its false-alarm rate assumes a check every 5
// minutes, 288 per day.
constexpr double kBucketsADay = 288;
constexpr int64_t kClockSkewSeconds = 86400;  // a record further in the future than this counts as broken

// Collects the errors of sources that cannot be read, so that the other sources are still read. If no source can be
// read, rethrows the first error.
class Failures {
 public:
  explicit Failures(Observation& observation) : observation_(observation) {}
  // Runs f(). If f throws because the source cannot be read, stores the error and returns false.
  bool attempt(const std::function<void()>& f) {
    try {
      f();
      return true;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kData && e.kind() != ErrorKind::kNetwork && e.kind() != ErrorKind::kIo) throw;
      if (!first_) first_ = std::current_exception();
      observation_.set_aside.add(e.what());
      return false;
    }
  }
  void done() const {
    if (observation_.pages + observation_.records_sources == 0 && first_) std::rethrow_exception(first_);
  }

 private:
  Observation& observation_;
  std::exception_ptr first_;
};

class SourceReader {
 public:
  SourceReader(const ObservationContext& context, Detector& detector, Observation& observation)
      : context_(context),
        manifest_(context.package.manifest),
        state_(context.state),
        detector_(detector),
        observation_(observation),
        names_(names_of(context.options.sources)) {}

  void read() {
    for (size_t i = 0; i < names_.size(); ++i) {
      const SecretUrl& source = context_.options.sources[i];
      if (is_url(source.reveal())) {
        // The epoch changes when the detectors are restarted. The key contains the epoch, so that scrapes from before a
        // restart are not found.
        const std::string key = state_.value("epoch") + " " + names_[i];
        std::optional<Counters> before = state_.counters(key);
        observation_.pages += failures_.attempt([&] { read_page(source, names_[i], key, std::move(before)); });
      } else
        observation_.records_sources += read_records_of(source.reveal());
    }
    failures_.done();
    for (const auto& [engine, bucket] : buckets_) feed_chart(engine, bucket);
    for (const std::string& engine : counter_engines())
      if (!buckets_.contains(engine)) recall(engine);
    look_at_age();
    tell();
  }

 private:
  struct Bucket {
    Counters sum;
    std::string sources;
    std::vector<std::pair<std::string, Counters>> scrapes;  // key in the state, and the newest scrape, of each page
    double unseen = 0;                                      // counts that replicas made before their first scrape
    bool is_lost = false;                                   // counts of a replica were left out
  };

  bool read_records_of(const fs::path& source) {
    std::vector<fs::path> files;
    if (!failures_.attempt([&] { files = record_files(source); })) return false;
    bool any = files.empty();
    for (const fs::path& file : files) any |= failures_.attempt([&] { read_whole_or_not(file); });
    return any;
  }

  // The objects that change while a record file is read.
  struct Evidence {
    Detector detector;
    Claims claims;
    RequestFigures requests;
  };

  // Reads a record file. If that fails, restores the evidence from before this file.
  void read_whole_or_not(const fs::path& file) {
    std::optional<Evidence> before;  // made at the first new record, because most files have no new records
    try {
      read_file_of_records(file, [&] {
        if (!before) before = Evidence{detector_, observation_.claims, observation_.requests};
      });
    } catch (...) {
      if (before) {
        detector_ = std::move(before->detector);
        observation_.claims = std::move(before->claims);
        observation_.requests = std::move(before->requests);
      }
      throw;
    }
  }

  void read_file_of_records(const fs::path& file, const std::function<void()>& at_a_record) {
    const std::string draft = manifest_.draft.id.substr(0, 12), target = manifest_.target.id.substr(0, 12),
                      identity = file_identity(file);
    const FilePosition begin = state_.position(identity);
    FilePosition position = begin;
    const ReadFigures figures = read_records(file, identity, position, [&](const AcceptanceRecord& r) {
      if (r.time > context_.now + kClockSkewSeconds) throw Error(ErrorKind::kData, "record: t: is in the future");
      at_a_record();
      if (!r.target.empty()) {
        observation_.claims.records.add({r.time, r.target}, context_.now);
        ++observation_.claims.new_records;
      }
      if (!r.draft.empty() && r.draft != draft) {
        // Records of another draft, or of this draft with another target, say nothing about this pair of draft and
        // target.
        ++observation_.requests.other_draft;
      } else if (!r.target.empty() && r.target != target) {
        ++observation_.requests.other_target;
      } else if (r.target.empty() && context_.another_is_served) {
        ++observation_.requests.no_target;
      } else if (r.counts.drafted == 0) {
        ++observation_.requests.not_drafted;
      } else if (const Baseline::Stratum* stratum = detector_.baseline().find(stratum_key(r))) {
        ++(detector_.add(*stratum, r.counts, r.time) ? observation_.requests.watched : observation_.requests.too_short);
      } else if (++observation_.requests.no_baseline == 1) {
        observation_.requests.first_without_baseline = stratum_key(r);
      }
    });
    constexpr int64_t kSurelyOther = 10;
    if (begin.offset == 0 && figures.records == 0 && figures.broken_lines >= kSurelyOther) {
      // The subdirectory to which `serve --record` writes acceptance records.
      const fs::path beside = file.parent_path() / "acceptance";
      throw Error(ErrorKind::kData,
                  file.string() + ": no acceptance record in " + std::to_string(figures.broken_lines) +
                      " lines: expected what serve --acceptance-log writes, or the records of another engine" +
                      (fs::is_directory(beside) ? " (did you mean " + beside.string() + "?)" : ""));
    }
    if (position != begin) observation_.positions[identity] = position;
    observation_.read.records += figures.records;
    observation_.read.broken_lines += figures.broken_lines;
    if (observation_.read.first_problem.empty()) observation_.read.first_problem = figures.first_problem;
  }

  bool is_own(const ServedPair& pair) const {
    return manifest_.draft.id.starts_with(pair.draft) && manifest_.target.id.starts_with(pair.target);
  }

  // Collects the targets that the replicas of a page name, and returns whether any replica names a target. `counting`
  // has the replicas that have counters; if it is not empty, other replicas are ignored.
  bool hear_page(const Counters& page, const std::set<std::string>& counting, const std::string& name) {
    int64_t named = 0;
    for (const auto& [replica, pair] : page.pairs) {
      if (!is_fingerprint(pair.target) || (!counting.empty() && !counting.contains(replica))) continue;
      observation_.claims.add(name, pair.target);
      ++named;
    }
    observation_.claims.unnamed += std::max<int64_t>(0, static_cast<int64_t>(counting.size()) - named);
    return named > 0;
  }

  // Reads a page and compares its counters with the previous scrape. A replica is judged only if it names this
  // package's models, or if it names no models, as replicas of other engines do.
  void read_page(const SecretUrl& url, const std::string& name, const std::string& key,
                 std::optional<Counters> before) {
    Counters now = read_counters(url, context_.options.api_key, context_.options.model);
    now.time = context_.now;
    observation_.set_aside.add(now.set_aside, name + ": ");
    std::set<std::string> replicas = now.replicas();
    const bool names_target = hear_page(now, replicas, name);
    size_t others = 0;
    for (const auto& [replica, pair] : now.pairs) {
      others += !is_own(pair);
      replicas.insert(replica);
    }
    const auto own = [this](const ServedPair& pair) { return is_own(pair); };
    // Removes replicas that serve another pair of models from both scrapes, so that they are not judged.
    if (before && others > 0) {
      before->pairs = now.pairs;
      before->keep(own);
      observation_.without_others[key] = *before;
    }
    now.keep(own);
    if (others > 0)
      observation_.chart_notes.push_back(
          name + " serves another pair than the package's" +
          (replicas.size() > 1 ? " on " + std::to_string(others) + " of " + std::to_string(replicas.size()) + " servers"
                               : "") +
          ": its counters are not judged");
    if (!now.any && others == 0)
      (before ? observation_.chart_notes : observation_.silent_pages)
          .push_back(name + " has no speculation series (absent is not zero): is speculation on?");
    if (!now.any) return;
    Bucket& bucket = buckets_[now.engine];
    if (context_.another_is_served && !names_target) {
      // It is unknown which target made the counts up to now. They become the start from which later counts are judged.
      observation_.counters[key] = std::move(now);
    } else if (before && !before->series.empty()) {
      Counters rise = difference(now, *before);
      observation_.set_aside.add(rise.set_aside, name + ": ");
      bucket.unseen += rise.unseen;
      bucket.is_lost |= !rise.set_aside.empty();
      if (!rise.begun.empty()) {
        // Adds the new replicas to the earlier scrape, so that their later counts are included. The earlier scrape is
        // kept until enough counts have come in since then to be judged.
        before->adopt(now);
        observation_.counters[key] = *before;
        observation_.notes.push_back(name + ": " + std::to_string(rise.begun.count()) + " new under these labels (" +
                                     rise.begun.front() + "): counted from this look on, since a pod of another name " +
                                     "is no restart");
      }
      // The counts of a replica were left out, so this scrape becomes the start from which the page's counts are
      // judged.
      if (!rise.set_aside.empty()) observation_.counters[key] = now;
      bucket.sum.add(rise);
      bucket.sources += (bucket.sources.empty() ? "" : ", ") + name;
      bucket.scrapes.emplace_back(key, std::move(now));
    } else {
      bucket.unseen += now.counted();
      observation_.counters[key] = std::move(now);
    }
  }

  std::string chart_key(const std::string& engine) const { return "chart " + state_.value("epoch") + " " + engine; }

  CounterChart chart_of(const std::string& engine) const {
    CounterChart chart(context_.report.rollout, context_.options.false_alarm_every_days * kBucketsADay);
    if (const std::string old = state_.value(chart_key(engine)); !old.empty()) chart.restore(parse_json(old, "chart"));
    return chart;
  }

  // Judges all pages of an engine together. `bucket` has the sums of the counts of all replicas since the last judged
  // scrape.
  void feed_chart(const std::string& engine, const Bucket& bucket) {
    CounterChart chart = chart_of(engine);
    // If there are too few counts to be judged, the earlier scrapes stay in the state, so that the next check also
    // includes the counts of this one.
    if (!bucket.sources.empty() && chart.add(bucket.sum))
      for (const auto& [name, now] : bucket.scrapes) observation_.counters[name] = now;
    // Traffic counts as judged only if at least half of the counts were judged.
    if (chart.look() == CounterChart::Look::kJudged && bucket.unseen <= bucket.sum.counted())
      judged_ = true;
    else if (chart.look() == CounterChart::Look::kJudged || chart.look() == CounterChart::Look::kBlind ||
             bucket.unseen > 0 || bucket.is_lost)
      unjudged_ = true;
    observation_.chart_states[chart_key(engine)] = chart.state().dump();
    const std::string sources = bucket.sources.empty() ? engine : bucket.sources;
    observation_.charts.push_back(chart.view(sources));
    if (!chart.alarm().empty()) observation_.chart_alarms.push_back(sources + ": " + chart.alarm());
    if (!chart.note().empty()) observation_.chart_notes.push_back(sources + ": " + chart.note());
  }

  // Called for an engine without counters on any page of this check. Reports the earlier alarm of the engine's chart,
  // because only a restart of the detectors clears an alarm.
  void recall(const std::string& engine) {
    const CounterChart chart = chart_of(engine);
    observation_.recalled_buckets = std::max(observation_.recalled_buckets, chart.buckets());
    if (chart.alarm().empty()) return;
    const std::string sources = engine + ", in an earlier look";
    observation_.charts.push_back(chart.view(sources));
    observation_.chart_alarms.push_back(sources + ": " + chart.alarm());
  }

  // Updates the age of the evidence. Requests that are too short (such as health probes), and requests of other pairs
  // of models, do not count as traffic that could not be judged.
  void look_at_age() {
    const RequestFigures& r = observation_.requests;
    judged_ |= r.watched > 0;
    unjudged_ |= r.not_drafted + r.no_baseline + r.no_target > 0;
    observation_.age = EvidenceAge::restored(state_.value(kEvidenceAge), kEvidenceAge);
    observation_.age->add(judged_     ? EvidenceAge::Look::kJudged
                          : unjudged_ ? EvidenceAge::Look::kUnjudged
                                      : EvidenceAge::Look::kIdle,
                          context_.now);
  }

  void tell() {
    const std::string of = " of " + std::to_string(observation_.read.records) + " new requests ";
    const auto note = [&](int64_t n, const std::string& text) {
      if (n > 0) observation_.notes.push_back(std::to_string(n) + of + text);
    };
    note(observation_.requests.not_drafted,
         "were decoded without the draft, which says nothing about its acceptance: their server found that it does not "
         "pay (its dashboard and /metrics say why), or speculation is off");
    note(observation_.requests.too_short,
         "have fewer than " + std::to_string(Detector::kMinReached) + " tested positions and are not judged");
    note(observation_.requests.no_baseline, "are of conditions that were never measured (such as '" +
                                                observation_.requests.first_without_baseline +
                                                "') and are not judged: see monitor baseline");
    note(observation_.requests.other_draft, "were made with another draft and are not judged");
    note(observation_.requests.other_target, "were made with another target and are not judged");
    note(observation_.requests.no_target, "do not name their target and are not judged: another one was served");
  }

  const ObservationContext& context_;
  const PackageManifest& manifest_;
  const State& state_;
  Detector& detector_;
  Observation& observation_;
  const std::vector<std::string> names_;
  Failures failures_{observation_};
  std::map<std::string, Bucket> buckets_;   // key: name of the engine
  bool judged_ = false, unjudged_ = false;  // whether traffic was judged, and whether traffic could not be judged
};

}  // namespace

int64_t Observation::chart_buckets() const {
  int64_t most = 0;
  for (const ChartView& chart : charts) most = std::max(most, chart.judged);
  return most;
}

Detector make_detector(const CheckOptions& options, const ResolvedPackage& package, const ValidationReport& report) {
  const double requests = std::exp(alarm_level(options.requests_per_day, options.false_alarm_every_days));
  if (options.baseline.empty())
    return with_context(options.package + ": manifest.json: report",
                        [&] { return Detector(baselines(report), options.wander_sd, requests); });
  Baseline baseline = baseline_from_json(read_json(options.baseline), options.baseline);
  const PackageManifest& manifest = package.manifest;
  if (!manifest.draft.id.starts_with(baseline.draft) || !manifest.target.id.starts_with(baseline.target))
    throw Error(ErrorKind::kData, options.baseline + ": measured with draft " + baseline.draft + " and target " +
                                      baseline.target + ", the package has " + manifest.draft.id.substr(0, 12) +
                                      " and " + manifest.target.id.substr(0, 12) + ": run monitor baseline again");
  return Detector(std::move(baseline), options.wander_sd, requests);
}

EstimatedBaseline measure_baseline(const std::vector<SecretUrl>& sources, const ResolvedPackage& package, int64_t now) {
  const std::string draft = package.manifest.draft.id.substr(0, 12), target = package.manifest.target.id.substr(0, 12);
  for (const SecretUrl& source : sources)
    if (is_url(source.reveal()))
      throw Error(ErrorKind::kUsage,
                  "--source: " + source.shown() +
                      ": a baseline needs requests, expected acceptance records (a file or a directory)");
  EstimatedBaseline result = estimate_baseline([&](const auto& take) {
    for (const SecretUrl& source : sources)
      for (const fs::path& file : record_files(source.reveal())) {
        FilePosition position;
        read_records(file, file_identity(file), position, [&](const AcceptanceRecord& r) {
          if (r.time > now + kClockSkewSeconds) return;  // observe() ignores such records too
          if ((r.draft.empty() || r.draft == draft) && (r.target.empty() || r.target == target)) take(r);
        });
      }
  });
  result.baseline.draft = draft;
  result.baseline.target = target;
  return result;
}

Observation observe(const ObservationContext& context, Detector& detector) {
  Observation observation;
  for (const NamedRecord& r : context.newest) observation.claims.records.add(r, context.now);
  SourceReader(context, detector, observation).read();
  return observation;
}

void keep(const Observation& observation, State& state) {
  for (const auto& [name, counters] : observation.without_others) state.set_counters(name, counters);
  for (const auto& [identity, position] : observation.positions) state.set_position(identity, position);
  for (const auto& [name, counters] : observation.counters) state.set_counters(name, counters);
  for (const auto& [key, chart] : observation.chart_states) state.set_value(key, chart);
  if (observation.age) state.set_value(kEvidenceAge, observation.age->state());
}

}  // namespace specdec::monitor
